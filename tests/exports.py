"""Exports that all tests of this checkout share, between modules, processes and runs.

deploy.exports keeps each under the fingerprint of what it is made from, code and weights and tools, with its files'
sums: what is stale or cut is not found, and made anew. Archives are packed from them in a second and never kept.
"""

from pathlib import Path

from load.soak.models import TUNING


def shared() -> Path:
    """The folder, which `make serve` and the soak use as well."""
    TUNING.exports.mkdir(parents=True, exist_ok=True)
    return TUNING.exports
