"""One archive in one process: HTTP in front of its core, without TorchServe and Java.

__main__   the command: binds the ports, loads the archive, and starts the servers
process    signals, and the end
server     HTTP by uvicorn with the limits of --config, and gRPC
app        management and metrics beside the routes of deploy.frontend
"""
