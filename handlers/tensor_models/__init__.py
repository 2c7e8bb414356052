"""Models of tensors of the user's own: requests checked against a signature, as rows of micro-batches.

It may import handlers.base and everything below it.
"""
