"""The way of requests through a task, the same in both modes: flow.py tells it from top to bottom.

It may import handlers.protocol and handlers.engines, and what is below these.
"""
