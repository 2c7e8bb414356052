"""Which modules of tests an expression of marks (`pytest -m`) may select a test of, told from their text alone.

    text of a module ──> Marks(certain, possible) ──┐
    -m "e2e and not clock" ─────────────────────────┴──> may_select ──> imported, or left alone

Importing all of them takes a process 15 seconds, most of it torch, torchvision, transformers and scikit-learn, and a
run of the whole suite starts a dozen processes, most of which select a tenth of it.
"""

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from _pytest.mark.expression import Expression

# A mark is written out where it is given: `pytest.mark.clock`.
MARK = re.compile(r"\bmark\.([a-z0-9_]+)")
# Those that say how a test is run instead of what it needs; no expression names them.
HOW = frozenset({"filterwarnings", "parametrize", "skipif", "timeout", "usefixtures"})
MODULE_MARKS = re.compile(r"^pytestmark = .*$", re.MULTILINE)


class Marks(NamedTuple):
    """Names of the marks that every test of a module has, and of those that any of them may have."""

    certain: frozenset[str]
    possible: frozenset[str]

    def are(self, names: set[str]) -> bool:
        """Whether a test of the module may have these and no others, apart from those of HOW."""
        return self.certain <= names - HOW <= self.possible


def marks_of(path: Path, *by_folder: str) -> Marks:
    """The marks of a module's tests.

    Args:
        path: the module's file.
        by_folder: marks that its tests have without saying so.
    """
    text = path.read_text(encoding="utf-8")
    certain = {*by_folder, *(name for line in MODULE_MARKS.findall(text) for name in MARK.findall(line))} - HOW
    return Marks(frozenset(certain), frozenset(certain.union(MARK.findall(text)) - HOW))


def may_select(expression: str, marks: Marks) -> bool:
    """Whether an expression selects some test that has these marks; a wrong expression is left to pytest to refuse."""
    try:
        compiled = Expression.compile(expression)
    except SyntaxError:
        return True
    # What the expression does not name cannot matter to it.
    others = sorted(name for name in marks.possible - marks.certain if name in expression)
    chosen = (some for count in range(len(others) + 1) for some in combinations(others, count))
    return any(compiled.evaluate(_has(marks.certain.union(some))) for some in chosen)


def _has(names: frozenset[str]) -> Callable[..., bool]:
    """What an expression asks about a test that has these marks."""
    return lambda name, /, **_: name in names
