"""Bodies that no client should send, made from ones that clients do, and what must hold whatever is sent.

    valid values -> bodies (texts, images, documents, headers) -> Sent: parts and headers, by seed and number
    Sent, with valid neighbours -> in_process: the handlers, classic or adaptive    -> Received
                                -> served: a TorchServe with several small models   -> Received
    Received -> checks -> findings -> report: a table; found/: kept and replayed by test_found

`python -m tests.fuzz --help` runs it.
"""
