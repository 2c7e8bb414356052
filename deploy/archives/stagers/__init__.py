"""Stagers: each writes what one kind of model serves into an empty folder."""
