"""What `-m` selects is selected although modules without it are not imported."""

from pathlib import Path

import pytest

from tests.marks import Marks, marks_of, may_select

CHECK = "not e2e and not clock"
# A mark that stood here as it is written would be this module's own.
PYTEST = "pytest.mark"
TEXT = f"""
import pytest

pytestmark = [{PYTEST}.system, {PYTEST}.timeout(420)]


@{PYTEST}.parametrize("one", [1])
@{PYTEST}.clock
def test_one(one: int) -> None: ...
"""


def test_marks_of_a_module_are_those_that_its_text_and_its_folder_give(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(TEXT)
    assert marks_of(tmp_path / "test_module.py", "e2e") == Marks(
        certain=frozenset({"e2e", "system"}), possible=frozenset({"e2e", "system", "clock"})
    )


def test_marks_of_a_test_are_those_of_its_module_and_of_those_that_it_may_have() -> None:
    marks = Marks(frozenset({"e2e"}), frozenset({"e2e", "clock"}))
    assert marks.are({"e2e"})
    assert marks.are({"e2e", "clock", "parametrize", "timeout"})
    assert not marks.are({"clock"})
    assert not marks.are({"e2e", "system"})


@pytest.mark.parametrize(
    ("expression", "certain", "other", "selects"),
    [
        (CHECK, "", "", True),
        # Some tests have the mark, and others do not.
        (CHECK, "", "clock", True),
        (CHECK, "clock", "", False),
        (CHECK, "e2e", "clock system", False),
        ("clock", "", "e2e", False),
        ("clock and not e2e", "", "clock e2e", True),
        ("clock and e2e", "", "clock e2e", True),
        ("clock and e2e", "clock", "system", False),
        ("(e2e or environment) and not system", "", "environment", True),
        ("(e2e or environment) and not system", "system", "environment", False),
        # pytest says what is wrong with it.
        ("clock and", "", "", True),
    ],
)
def test_modules_of_which_an_expression_may_select_a_test(
    expression: str, certain: str, other: str, selects: bool
) -> None:
    marks = Marks(frozenset(certain.split()), frozenset(f"{certain} {other}".split()))
    assert may_select(expression, marks) is selects
