"""The page's routes: types, policy, caching, refusals."""

from collections.abc import Iterator

import pytest
import requests

from deploy.gateway.control.page import PAGE
from tests.deploy.gateway.envoy.harness import TIMEOUT_S
from tests.deploy.gateway.scene import Scene


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("page")) as made:
        yield made


def get(page: Scene, path: str, **headers: str) -> requests.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.get(page.url + path, headers=named, timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("path", "content_type", "cached"),
    [
        ("/", "text/html; charset=utf-8", "no-cache"),
        ("/page/page.js", "text/javascript; charset=utf-8", "no-cache"),
        # Data that a key protects is not cached.
        ("/summary", "application/json", "no-store"),
    ],
)
def test_answers_have_their_type_and_let_nothing_else_run(
    page: Scene, path: str, content_type: str, cached: str
) -> None:
    answer = get(page, path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, content_type)
    assert answer.headers["Cache-Control"] == cached
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert not any(word in policy for word in ("unsafe", "http", "*"))
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"


def test_files_are_those_of_the_folder_and_no_others(page: Scene) -> None:
    for path in PAGE.iterdir():
        assert get(page, f"/page/{path.name}").content == path.read_bytes()
    for name in ("nothing.js", "", "..%2fmetrics.py", "%2e%2e%2fsettings.py", ".hidden"):
        assert get(page, f"/page/{name}").status_code == 404
