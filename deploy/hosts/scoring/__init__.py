"""Score a Ray Dataset with an archive, without a server: docs/how-to/bulk-scoring.md, extra `ray` of pyproject.toml.

    Dataset -> blocks -> Scorer, an actor each -> Model: the archive's own handler -> Dataset with `answer` and `error`

`Model` loads an archive in the process that it is called in, and needs no Ray. The modules do not import `handlers`:
like a worker, a process uses the package in its archive.
"""

from deploy.hosts.scoring.dataset import score

__all__ = ["score"]
