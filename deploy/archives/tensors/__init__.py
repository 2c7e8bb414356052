"""Models of tensors: files, graphs, programs, functions, and the proof that rows do not affect each other."""
