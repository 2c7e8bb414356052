"""What a model of the user's own takes and gives: tensors, checked against its signature, as rows of micro-batches.

It may import handlers.base and what is below.
"""
