"""Puts a server under mixed load for minutes, kills its workers, and counts what was lost or crossed: `make soak`.

candidates -> canaries   (what is sent, and the answer that it must show)
models                   (archives in both modes, one server)
traffic, misbehaviour    -> ledger
kills, resources         -> ledger
run (the phases)         -> report (the table, the JSON, the findings)

It starts servers, so like bench it may import deploy.
"""
