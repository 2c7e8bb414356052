"""`make mutants`: puts small faults into copies of the repository, one at a time; prints those that no test notices.

each test module once, with coverage -> the tests of each line, kept in build/mutants; a sample of faults by the seed ->
in a clone: write the fault, fork with all libraries, run the line's tests, restore
"""

import argparse
import functools
import itertools
import os
import random
import re
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from tests.executed import MUTATED, fork_pytest, git, lines, load, make_clone, measure, seconds
from tests.faults import ROOT, Mutant, find_mutants

MODULES = r"tests/(?!e2e/|nightly/)(.*/)?test_\w+\.py"
BUDGETS_S = (6.0, 34.0)  # of the first tests, which notice most faults, and of the others
IMPORT_S = 0.3  # of a test module
TIMEOUT_S = 60  # of a test with a mutant
LIMIT_S = 200.0  # of either part with a mutant, which may turn in circles
LIBRARIES = """torch torchvision openvino ctranslate2.converters ts.torch_handler.base_handler transformers onnx grpc
pydantic hypothesis sentence_transformers PIL.Image aiohttp.web requests tritonclient.grpc uvicorn orjson"""


class Chosen:
    """A plugin of pytest: runs these tests in this order, and before them those that are not known."""

    def __init__(self, tests: list[str]) -> None:
        self._order = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._order or item.nodeid not in seconds]
        items[:] = sorted(chosen, key=lambda item: self._order.get(item.nodeid, -1))


def order_tests(mutant: Mutant) -> list[list[str]]:
    """Return the tests that run first, and the others: those of the line, then of their modules and the file's own."""
    executed = lines[mutant.file]
    of_line = {test for line, tests in executed.items() if mutant.lines[0] <= line <= mutant.lines[1] for test in tests}
    of_file = {test for tests in executed.values() for test in tests} if "" in of_line else set()
    own = Path(mutant.file.replace("torchserve_client/", "")).with_suffix("")
    modules = {test.partition("::")[0] for test in of_line} | {f"tests/{own.with_name(f'test_{own.name}.py')}"}

    def cost(test: str) -> Any:
        module = Path(test.partition("::")[0]).relative_to("tests")
        far = 0 if module.stem == f"test_{own.name}" else 1 if module.parent == own.parent else 2
        rank = 0 if test in of_line else 1 if test in of_file else 2
        return 1000 * rank + far + seconds[test]

    near = (test for test in seconds if test in of_line | of_file or test.partition("::")[0] in modules)
    rest, parts, imported = sorted(near, key=cost), list[list[str]](), set[str]()
    for budget_s in BUDGETS_S:
        chosen, left_s = list[str](), budget_s
        for test in rest:
            module = test.partition("::")[0]
            takes_s = seconds[test] + (0 if module in imported else IMPORT_S)
            if takes_s < left_s:
                left_s -= takes_s
                imported.add(module)
                chosen.append(test)
        rest = [test for test in rest if test not in chosen]
        parts += [chosen] if chosen else []
    return parts


def run_tests(tests: list[str]) -> str:
    """Run pytest in a fork until its first failure; return the failed test, or ""."""
    modules = dict.fromkeys(test.partition("::")[0] for test in tests)
    code = fork_pytest(LIMIT_S, ["-x", "--timeout", str(TIMEOUT_S), *modules], lambda: Chosen(tests))
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", Path("mutant.log").read_text(errors="replace"), re.M)
    if code is None:
        return f"no end in {LIMIT_S:.0f} s"
    return "" if code in (0, 5) else failed[1] if failed else f"the process ended, {code}"


@functools.cache
def is_broken(test: str) -> bool:
    """Return whether a test fails without a mutant, in this process's clone."""
    return "::" in test and bool(run_tests([test]))


def try_out(mutant: Mutant) -> str:
    """Return the test that notices a mutant in this process's clone, or ""."""
    path = Path(mutant.file)
    original = path.read_bytes()
    for part in order_tests(mutant):
        tests = part
        while tests:
            path.write_text(mutant.apply(original))
            try:
                found = run_tests(tests)
            finally:
                path.write_bytes(original)
            if not is_broken(found):
                break
            tests = [test for test in tests if test != found]
        if tests and found:
            return found
    return ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--base", help="revision: only the files that differ from it")
    parser.add_argument("--tests", action="append", help="folder or module: only these tests, of check and builds")
    parser.add_argument("--maps", type=Path, help="folder: which tests execute a line; default: of this commit")
    parser.add_argument("files", nargs="*", help="files and folders; default: all")
    options = parser.parse_args(arguments)
    words = ["diff", "--name-only", "--diff-filter=d", options.base] if options.base else ["ls-files", *options.files]
    found = [each for file in git(*words) if re.match(MUTATED, file) for each in find_mutants(file)]
    random.Random(options.seed).shuffle(found)
    valid = (mutant for mutant in found if mutant.apply((ROOT / mutant.file).read_bytes()))
    sample = [*itertools.islice(valid, options.number)]
    maps = (options.maps or ROOT / "build" / "mutants" / git("rev-parse", "HEAD")[0]).resolve()
    modules = [each for each in git("ls-files", *(options.tests or ["tests"])) if re.fullmatch(MODULES, each)]
    for name in LIBRARIES.split():
        import_module(name)
    noticed, fork, commit = list[bool](), get_context("fork"), [*git("stash", "create"), "HEAD"][0]
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        missing = [(each, path) for each in modules if not (path := maps / f"{each}.json").exists()]
        with ProcessPoolExecutor(os.cpu_count(), fork, make_clone, (folder, commit)) as pool:
            list(pool.map(measure, *zip(*missing, strict=True)) if missing else ())
        for each in modules:
            load(maps / f"{each}.json")
        with ProcessPoolExecutor(os.cpu_count(), fork, make_clone, (folder, commit)) as pool:
            for mutant, test in zip(sample, pool.map(try_out, sample), strict=True):
                noticed.append(bool(test))
                print(f"{mutant.file}:{mutant.lines[0]} {mutant.kind}: {test or 'SURVIVED'}", flush=True)
                print("" if test else mutant.show(), end="" if test else "\n", flush=True)
    share = 100 * sum(noticed) / max(1, len(noticed))
    print(f"noticed: {sum(noticed)} of {len(noticed)}, {share:.0f} %; {len(found)} faults, seed {options.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
