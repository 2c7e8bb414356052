"""Load on a server, and what became of it."""
