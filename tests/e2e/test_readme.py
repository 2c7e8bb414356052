"""README's commands, those of a task and of the gateway, in a checkout of its own with this one's environment.

In their order, by one reader in one shell: a block that fails fails those behind it. tests/nightly/test_readme.py runs
every block of all pages that are run, with an environment that they build themselves.
"""

import ast
import json
from collections.abc import Iterator

import pytest

from tests.e2e.checkout import Checkout, Reader, checkout
from tests.pages import RUN_PAGES, blocks

# The others train models, or set TLS up.
PAGES = [page for page in RUN_PAGES[:6] if not page.endswith(("first-model.md", "keys-and-tls.md"))]
SERVE, *REQUESTS = (block for page in PAGES for block in blocks(page))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    with checkout(tmp_path_factory.mktemp("r")) as made:
        yield made


@pytest.fixture(scope="module")
def reader(site: Checkout) -> Reader:
    # The block that activates it is left out.
    return Reader(site, "source .venv/bin/activate\n")


def test_make_serve_starts_a_server_and_a_second_one_finds_all(site: Checkout, reader: Reader) -> None:
    first, again = reader.read(SERVE), reader.read(SERVE)
    # A second call prints only the summary: nothing else happened.
    rest = again.splitlines()
    assert first.splitlines()[-len(rest) :] == rest
    # Below the summary is curl's response.
    names = [line.split()[0] for line in rest if line[:1].isupper()]
    assert names == ["Model", "Precision", "Engine", "URL", "Try", "Response", "Logs", "Stop"]


@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_requests_are_answered(reader: Reader, number: int) -> None:
    reader.read(REQUESTS[number])


def test_program_of_readme_prints_the_length_of_a_vector(site: Checkout) -> None:
    (program,) = blocks("README.md", "python")
    done = site.run(f"source .venv/bin/activate\npython - <<'END'\n{program}END\n")
    assert (done.returncode, done.stdout) == (0, "384\n"), done.stderr


def test_examples_of_clients_print_their_answers(site: Checkout) -> None:
    http, management = (f"localhost:{site.ports[port]}" for port in (8080, 8081))
    register = "curl -X POST 'localhost:8081/models?url=batch2.mar&initial_workers=1&synchronous=true'"
    site.run(f"./archive.sh batch2 && {register}")

    def printed(command: str) -> list[str]:
        done = site.run(f"source .venv/bin/activate && {command}")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout.splitlines()

    whole, first, listed = map(ast.literal_eval, printed(f"examples/client/curl.sh http://{http}"))
    assert (len(whole), len(first), [len(item) for item in listed["predictions"]]) == (5, 1, [1, 1])
    # A list and a single request are one model: the cat is the same one, up to the arithmetic of other batches.
    assert listed["predictions"][0].keys() == first.keys()
    single, *several, rejected = printed(f"python -m examples.client.predict http://{http}")
    assert [len(ast.literal_eval(line)) for line in (single, *several[:2])] == [1, 1, 1]
    assert several[2].startswith("failed: UnsupportedMedia: ")
    assert rejected.startswith("400 InvalidOption: ")
    answers = dict(line.split(" ", 1) for line in printed(f"python -m examples.client.folder http://{http}"))
    assert answers.keys() == {path.name for path in (site.folder / "examples").rglob("*.jpg")}
    lists, tensors = printed(f"python -m examples.client.chunking http://{http} http://{management}")
    assert (lists[:21], tensors) == ("as lists (1000, 384) ", "as tensors (100, 384)")
    assert printed(f"python -m examples.client.triton {http}")[0].startswith("news float32 (2, 384) [[")
    locust = "python -m locust -f examples/load/locustfile.py --headless -u 2 -r 2 -t 12s --json --only-summary"
    loaded = site.run(f"source .venv/bin/activate && {locust} -H http://{http}")
    (found,) = json.loads(loaded.stdout)
    assert (found["name"], found["num_failures"], found["num_requests"] > 0) == ("mobilenet-v2", 0, True)


def test_make_stop_ends_the_gateway_and_the_server(site: Checkout) -> None:
    assert "TorchServe: stopped" in site.run("make stop").stdout
    assert site.server("config.properties").pid() is None
    assert not site.processes()
