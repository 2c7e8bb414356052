"""Bodies to items and results to bodies: TorchServe's rows and the Open Inference Protocol. Pure.

It may import handlers.errors and handlers.config.
"""
