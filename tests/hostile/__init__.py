"""Requests that no client should send, and what must hold whatever is sent; `make fuzz` sends more of them."""
