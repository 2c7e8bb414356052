"""The worker that forms its own batches: threads and the socket to TorchServe's frontend around handlers.scheduling.

It may import handlers.scheduling and what is below it.
"""
