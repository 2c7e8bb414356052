"""The names of a model's classes: index_to_name.json beside its model-config.yaml. Imports no torch."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from deploy.models import ModelEntry
from handlers.errors import InvalidConfig

LABELS = "index_to_name.json"  # in the archive, too
FORM = '{"0": "NAME", "1": "NAME", ...}'
# Files that may have names, and the numbers of names of torchvision's own weights, which need no file.
LIKELY = re.compile(r".*(label|class|categor|names|synset).*\.(txt|csv|tsv|names)", re.IGNORECASE)
KNOWN = (1000, 91, 21)
# A line of such a file: a name of few words, behind a number or an id of WordNet; reports and weights have numbers.
NAMED = re.compile(r"\s*((n?\d+)[\s,;:]+)?[^\W\d][^\s,;\d]*( [^\s,;\d]+){0,4}\s*")
MOST_BYTES = 10**6


def check_labels(model: ModelEntry) -> None:
    """Raise InvalidConfig if a network of torchvision has an invalid file of names, or names in another file.

    Of a file that may have other content it prints a line: the build compares the number of names with the network's.
    """
    own = model.folder / LABELS
    if own.is_file():
        read_label_file(model, own)
        return
    for path in sorted(model.folder.glob("*")):
        if LIKELY.fullmatch(path.name) and path.is_file() and path.stat().st_size < MOST_BYTES:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            lines = [line for line in lines if line.strip()]
            words = f"{model.name}: {path.name} is not read; name the classes in {os.path.relpath(own)}: {FORM}"
            if len(lines) > 1 and len(lines) not in KNOWN and all(map(NAMED.fullmatch, lines)):
                raise InvalidConfig(words)
            print(words, file=sys.stderr)


def read_label_file(model: ModelEntry, path: Path) -> tuple[list[str], list[str]]:
    """Read names by number, or TorchServe's pairs {"0": ["n01440764", "tench"], ...} and their ids."""
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InvalidConfig(f"{model.name}: {path.name}: not a JSON object of names by number: {FORM}")
    names = [content.get(str(number)) for number in range(len(content))]
    pairs: list[list[Any]] = [name if isinstance(name, list) else [name] for name in names]
    for number, pair in enumerate(pairs):
        if not 1 <= len(pair) <= 2 or not all(isinstance(text, str) for text in pair):
            raise InvalidConfig(
                f"{model.name}: {path.name}: class {number} has no name; the file needs {FORM}, from 0 to "
                f"{len(pairs) - 1}, or pairs of WordNet id and name"
            )
    return [pair[-1] for pair in pairs], [pair[0] for pair in pairs] if all(len(pair) == 2 for pair in pairs) else []
