"""TorchServe's continuous-batching mode, one of the servers in front of handlers.batching.core.

exchanges    the thread that talks to the frontend, and works meanwhile
timing       when to answer the frontend                        pure
frontend     TorchServe's messages
only_worker  one worker a model
"""
