"""TorchServe's frontend and the gateway's routes in Python, for servers other than TorchServe. Imports no server.

    forms    an HTTP request -> a row and its headers, as TorchServe's frontend passes them
    http     ASGI: bodies and answers; memory: what they may hold
    repository   Triton's requests to load and unload models
    routes   the routes of all models: Open Inference, OpenAI's, SageMaker's; grpc: Triton's service

`http` imports no `handlers`, nor does `replica` before it has loaded an archive, which has its own.
"""
