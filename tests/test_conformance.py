"""docs/conformance.md and its tests are the same list: no row without a test, no test without a row."""

import ast
import re

from deploy.models import ROOT
from tests.pages import read

PAGE, MODULE = "docs/conformance.md", ROOT / "tests" / "e2e" / "test_conformance.py"
# Of every row that begins with |, its last cell; heads and rules have no such name.
NAMED = re.compile(r"^\|.*\| `(test_\w+)` \|$", re.MULTILINE)
ROW = re.compile(r"^\|(?!---)(?!.*\| test \|$).*$", re.MULTILINE)


def test_every_row_names_one_test_and_every_test_is_named() -> None:
    page = read(PAGE)
    rows = NAMED.findall(page)
    assert len(rows) == len(ROW.findall(page)), "a row's last cell is the name of its test"
    tree = ast.parse(MODULE.read_text(encoding="utf-8"))
    tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    assert sorted(rows) == sorted(tests)


def test_no_test_of_a_row_is_skipped() -> None:
    text = MODULE.read_text(encoding="utf-8")
    assert not re.search(r"\b(skipif|xfail|importorskip)\b|pytest\.skip|mark\.skip", text)
