"""The way of items through the model is the same in both modes: slots, micro-batches, hooks called safely, warm-up.

It may import handlers.protocol and handlers.engines, and what is below these.
"""
