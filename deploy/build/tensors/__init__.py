"""Models of tensors as they are found: files, graphs, programs, functions, and the proof that rows stay apart."""
