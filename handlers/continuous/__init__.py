"""TorchServe's continuous-batching mode: one of the servers of handlers.batching.core.

exchanges  the thread that talks to the frontend, and runs small micro-batches
timing     when to answer the frontend                        pure
frontend   TorchServe's messages
mode       whether an archive's settings ask for this mode, and one worker per model
"""
