"""One archive in one process: HTTP in front of its core, without TorchServe and Java.

__main__   the command: binds the ports, loads the archive, and starts the servers
process    signals, and the end
limits     the limits of --config
connection HTTP: a connection, by uvicorn and httptools
rpc        gRPC
server     starts and ends the servers of HTTP and gRPC
store      a folder of archives, loaded by request; stored: a model of it
app        management and metrics beside the routes of deploy.hosts.frontend
"""
