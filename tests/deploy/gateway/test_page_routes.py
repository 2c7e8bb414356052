"""The page's routes over a socket: types, caching, policy, and what is refused."""

import gzip
import json
from collections.abc import Iterator

import pytest
import requests

from deploy.gateway.page_routes import PAGE
from tests.deploy.gateway.canned import Site


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as running:
        yield running


def get(site: Site, path: str, **headers: str) -> requests.Response:
    return requests.get(site.url + path, headers=headers, timeout=30)


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/page/page.css", "text/css; charset=utf-8"),
        ("/page/page.js", "text/javascript; charset=utf-8"),
        ("/page/icon.svg", "image/svg+xml; charset=utf-8"),
        ("/openapi.json", "application/json; charset=utf-8"),
        ("/summary", "application/json"),
    ],
)
def test_answers_have_their_type_and_run_nothing_else(site: Site, path: str, content_type: str) -> None:
    answer = get(site, path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, content_type)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/openapi.json"])
def test_file_that_the_client_has_is_not_sent_again(site: Site, path: str) -> None:
    first = get(site, path)
    assert first.headers["Cache-Control"] == "no-cache"
    again = get(site, path, **{"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert get(site, path, **{"If-None-Match": '"another"'}).status_code == 200


def test_what_a_key_protects_is_kept_nowhere(site: Site) -> None:
    assert get(site, "/summary").headers["Cache-Control"] == "no-store"


def test_etag_of_the_document_follows_the_fleet(site: Site) -> None:
    before, served = get(site, "/openapi.json").headers["ETag"], site.served
    try:
        site.served = type(served)()
        assert get(site, "/openapi.json").headers["ETag"] != before
    finally:
        site.served = served


def test_files_are_those_of_the_folder(site: Site) -> None:
    for path in PAGE.iterdir():
        assert get(site, f"/page/{path.name}").content == path.read_bytes()


@pytest.mark.parametrize(
    "path", ["/page/nothing.js", "/page/", "/page/..%2fsummary.py", "/page/%2e%2e%2fpage_routes.py", "/page/.hidden"]
)
def test_nothing_else_is_served(site: Site, path: str) -> None:
    assert get(site, path).status_code == 404


def test_error_of_a_file_has_the_projects_form(site: Site) -> None:
    assert get(site, "/page/nothing.js").json() == {
        "code": 404,
        "type": "NotFound",
        "message": "There is no such file.",
    }


@pytest.mark.parametrize("since", ["yesterday", "nan", ""])
def test_since_that_is_no_number_is_refused(site: Site, since: str) -> None:
    answer = get(site, f"/summary?since={since}")
    assert (answer.status_code, answer.json()["type"]) == (400, "InvalidSince")


def test_since_leaves_out_older_points(site: Site) -> None:
    last_s = get(site, "/summary").json()["time_s"]
    assert all(len(model["points"]) == 2 for model in get(site, f"/summary?since={last_s - 4}").json()["models"])


def test_large_answers_are_compressed_for_those_who_take_it(site: Site) -> None:
    with requests.get(f"{site.url}/summary", headers={"Accept-Encoding": "gzip"}, stream=True, timeout=30) as answer:
        raw = answer.raw.read()
    assert answer.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(raw))["models"]
    plain = get(site, "/page/page.css", **{"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    assert plain.headers["Vary"] == "Accept-Encoding"


def test_page_itself_has_no_inline_script_or_style_and_asks_nobody_else() -> None:
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "innerHTML" not in text and "http://" not in text and "https://" not in text
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert "style=" not in html and "<style" not in html and " onclick" not in html
    assert html.count("<script") == html.count("<script src=") + html.count('<script type="module" src=')
