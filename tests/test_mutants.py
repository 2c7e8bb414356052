"""The faults that `make mutants` makes of a file, and the tests that it runs for one."""

from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import Mutant, find_mutants

SOURCE = """
@dataclass(frozen=True)
class Budget:
    size: Literal[1, 2] = 2

    def take(self, count: int = 1) -> int | None:
        if not self.size or count > self.size:
            return None
        try:
            self.watch(count, flag=True)
            logger.info('%s of', min(count, self.size))
            return take(count, self.size)
        finally:
            self.size -= count
            self.tell()
"""
ELSE = """try:
            self.watch(count, flag=True)
            logger.info('%s of', min(count, self.size))
            return take(count, self.size)
        except ():
            pass
        else:
            self.size -= count
            self.tell()"""
FAULTS = [
    (4, "constant", "3"),
    (6, "constant", "2"),
    (7, "condition", "(not self.size)"),
    (7, "not", "(self.size)"),
    (7, "operator", "((count) >= (self.size))"),
    (7, "operator", "((not self.size) and (count > self.size))"),
    (9, "finally", ELSE),
    (10, "constant", "False"),
    (10, "dropped argument", "self.watch(count)"),
    (10, "dropped call", "pass"),
    (11, "argument order", "min(count, self.size), '%s of'"),
    (11, "constant", "max"),
    (12, "argument order", "self.size, count"),
    (12, "return value", "return None"),
    (14, "dropped call", "pass"),
    (15, "dropped call", "pass"),
]


def test_faults_of_a_file_are_one_of_each_kind_and_none_in_annotations_and_decorators(tmp_path: Path) -> None:
    path = tmp_path / "budget.py"
    path.write_text(SOURCE)
    found = [each for each in find_mutants(str(path)) if each.apply(SOURCE.encode())]
    assert sorted((each.lines[0], each.kind, each.new) for each in found) == FAULTS


def test_tests_of_the_line_run_first_the_quick_ones_before_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    own, slow, quick, long = (f"tests/{name}.py::test" for name in ("a/test_b", "c/test_d", "c/test_e", "c/test_f"))
    lines = {"1": [""], "3": [slow, own, long], "9": [quick]}
    monkeypatch.setattr(mutants, "seconds", {slow: 7.0, quick: 0.1, own: 1.0, own + "_2": 0.5, long: 90.0})
    monkeypatch.setattr(mutants, "executed", {"a/b.py": lines})

    def choose(*lines: int) -> list[list[str]]:
        return mutants.choose_tests(Mutant("a/b.py", (lines[0], lines[-1]), "not", 0, 0, ""))

    assert choose(3) == [[own], [slow, own + "_2"]]
    assert choose(8, 9) == [[quick, own + "_2", own]]
    assert choose(1) == [[quick, own], [slow, own + "_2"]], (
        "a line that runs at import: all tests that execute its file"
    )
    assert choose(5) == [[own + "_2", own]], "of a line that no test executes only the file's own module"
