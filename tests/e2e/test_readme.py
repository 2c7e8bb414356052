"""README's shell blocks, and those of the pages that follow it, in a checkout of its own with this one's environment.

In their order, by one reader in one shell: a block that fails fails those behind it. tests/nightly/test_readme.py runs
them with an environment that they build themselves.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.e2e.checkout import Checkout, Reader, checkout
from tests.pages import RUN_PAGES, blocks

BLOCKS = [block for page in RUN_PAGES for block in blocks(page)]
# What ends the server that they have started.
STOP = len(BLOCKS) - 1


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    with checkout(tmp_path_factory.mktemp("r")) as made:
        yield made


@pytest.fixture(scope="module")
def reader(site: Checkout) -> Reader:
    return Reader(site, has_weights=False)


@pytest.mark.parametrize("number", range(STOP))
def test_block_runs_as_written(reader: Reader, number: int) -> None:
    reader.read(BLOCKS[number])
    if BLOCKS[number] == "make serve\n":
        again = reader.read(BLOCKS[number])
        assert again.count("up to date") == again.count("already served") == 1
        assert "; mobilenet-v2 is served instead\n" in again
        assert "already running" in again


def test_examples_of_clients_print_their_answers(site: Checkout) -> None:
    """Which label untrained weights give means nothing, that they give one does."""
    http, management = (f"localhost:{site.ports[port]}" for port in (8080, 8081))
    site.run(
        "./archive.sh batch2 && curl -X POST 'localhost:8081/models?url=batch2.mar&initial_workers=1&synchronous=true'"
    )

    def printed(command: str) -> list[str]:
        done = site.run(f"source .venv/bin/activate && {command}")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout.splitlines()

    whole, first, listed = map(ast.literal_eval, printed(f"examples/client/curl.sh http://{http}"))
    assert (len(whole), len(first), [len(item) for item in listed["predictions"]]) == (5, 1, [1, 1])
    # A list and a single request are one model: the cat is the same one, up to the arithmetic of other batches.
    assert listed["predictions"][0].keys() == first.keys()
    single, *several, refused = printed(f"python -m examples.client.predict http://{http}")
    assert [len(ast.literal_eval(line)) for line in (single, *several[:2])] == [1, 1, 1]
    assert several[2].startswith("failed: UnsupportedMedia: ")
    assert refused.startswith("400 UnknownOption: ")
    answers = dict(line.split(" ", 1) for line in printed(f"python -m examples.client.folder http://{http}"))
    assert answers.keys() == {path.name for path in (site.folder / "examples").rglob("*.jpg")}
    lists, tensors = printed(f"python -m examples.client.chunking http://{http} http://{management}")
    assert (lists[:21], tensors) == ("as lists (1000, 384) ", "as tensors (100, 384)")
    assert printed(f"python -m examples.client.triton {http}")[0].startswith("news float32 (2, 384) [[")


def test_last_block_ends_the_server(site: Checkout, reader: Reader) -> None:
    reader.read(BLOCKS[STOP])
    assert site.server("config.properties").pid() is None
