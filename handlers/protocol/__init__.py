"""Turn bodies into items and results into bodies: TorchServe's rows, the Open Inference Protocol and the APIs of embedding
servers. Pure.
"""
