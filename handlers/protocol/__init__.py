"""Turn bodies into items and results into bodies: TorchServe's rows, the Open Inference Protocol, and APIs of embedding
servers. Pure.
"""
