"""Requests that no client should send, and what must hold whatever is sent.

    requests.py    strategies of hypothesis -> Request: parts, form and headers
    target.py      a worker in this process, behind what TorchServe hands over -> Reply
    checks.py      Request, Reply -> what is wrong; a valid neighbour's reply -> whether it changed
    found/         earlier failures, replayed in every run

`make fuzz` runs the same properties over more examples.
"""
