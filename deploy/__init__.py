"""Builds the archives, starts the server and says what went wrong."""
