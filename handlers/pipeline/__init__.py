"""The way of requests through a task, the same in both modes: flow.py tells it from top to bottom.

    task            the hooks that it calls
    limits          whether a request asks for too much
    micro_batches   which items go through the model together

It may import handlers.protocol and handlers.engines, and what is below these.
"""
