"""The promises of every door, as one table: TorchServe, the gateway, one process and Ray Serve, by HTTP and by gRPC.

    rows    the table: what clients send, what each of them must see, and what it may cost
    door    a door's addresses and processes, and a client that plays a row there
    http2   frames of HTTP/2, for calls of gRPC that no library makes

A test of a kind of door starts one, and plays each row. A door that cannot keep a row is in the row's `lacks`.
"""
