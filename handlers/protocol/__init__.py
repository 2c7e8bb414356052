"""Turn bodies into items and results into bodies: TorchServe's rows and the Open Inference Protocol. Pure.

It may import handlers.errors and handlers.config.
"""
