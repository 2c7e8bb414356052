"""One archive in one process: HTTP in front of its core, without TorchServe and Java.

__main__   the command: loads the archive, starts the servers, and ends them
app        management and metrics beside the routes of deploy.frontend, and the requests in flight
metrics    /metrics of Prometheus
"""
