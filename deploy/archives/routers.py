"""The folder of a Router of sentence-transformers: one model for documents, a static weight of each word for queries.

router_config.json -> read_router -> the folders of its modules
linked files       -> flatten     -> the documents' model as a checkpoint, and the queries' weights in query_weights.npy
"""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.torch

from handlers.errors import InvalidConfig
from handlers.text.token_modules import QUERY_WEIGHTS

CONFIG = "router_config.json"
STATIC, WEIGHT = "SparseStaticEmbedding", "weight"


class Router(NamedTuple):
    query: str  # the folder of the queries' weights
    documents: list[tuple[str, str]]  # the folder and the type of each module for documents


def read_router(source: Path) -> Router | None:
    """Read a Router; None if a folder has another layout, InvalidConfig if it routes otherwise."""
    if not (source / CONFIG).is_file():
        return None
    content = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    types, routes, usual = content["types"], content["structure"], (content.get("parameters") or {})
    query = routes.get("query") or [""]
    is_static = len(query) == 1 and types.get(query[0], "").endswith(f".{STATIC}")
    if {*routes} != {"query", "document"} or not is_static or usual.get("default_route") not in (None, "document"):
        raise InvalidConfig(
            f"{CONFIG}: only the routes query, of one {STATIC}, and document, the default, are supported; write a task "
            "for this model"
        )
    return Router(query[0], [(path, types[path]) for path in routes["document"]])


def flatten(folder: Path, router: Router) -> None:
    """Replace the layout of a Router, whose documents' transformer is in the folder itself already."""
    weights = safetensors.torch.load_file(folder / router.query / "model.safetensors")[WEIGHT]
    np.save(folder / QUERY_WEIGHTS, weights.float().numpy())
    shutil.rmtree(folder / router.query)
    (folder / CONFIG).unlink()
    (folder / "modules.json").unlink()
    paths = ["", *(path for path, _ in router.documents[1:])]
    kinds = [kind for _, kind in router.documents]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": kind}
        for index, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
