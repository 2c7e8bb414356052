"""Raises the images that this project names by version and digest: `make images TAGS='grafana/grafana=13.2.1'`.

compose.yaml, a manifest -> NAME:TAG@DIGEST -> the registry's digest of the tag -> the same files
"""

import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parents[1]
FILES = (ROOT / "compose.yaml", ROOT / "deploy" / "kubernetes" / "components" / "models-fetch" / "node.yaml")
# The registry, the name, the tag and the digest of an image.
IMAGE = re.compile(r"(?P<registry>[\w.-]+\.\w+)/(?P<name>[\w./-]+):(?P<tag>[\w.-]+)@(?P<digest>sha256:[0-9a-f]{64})")
REGISTRIES = {"docker.io": "https://registry-1.docker.io"}
# The digest of an index, which names the image of each processor.
INDEXES = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
TIMEOUT_S = 30.0


def fetch_digest(registry: str, name: str, tag: str) -> str:
    """Return the digest of a tag; a registry names in a 401 the server that gives a token to any client."""
    url, headers = f"{registry}/v2/{name}/manifests/{tag}", {"Accept": INDEXES}
    try:
        return _head(url, headers)
    except urllib.error.HTTPError as error:
        fields = dict(re.findall(r'(\w+)="([^"]*)"', error.headers.get("WWW-Authenticate", "")))
        if error.code != 401 or "realm" not in fields:
            raise
        query = urlencode({"service": fields.get("service", ""), "scope": f"repository:{name}:pull"})
        with urllib.request.urlopen(f"{fields['realm']}?{query}", timeout=TIMEOUT_S) as answer:  # noqa: S310
            token = json.load(answer)["token"]
        return _head(url, {**headers, "Authorization": f"Bearer {token}"})


def _head(url: str, headers: dict[str, str]) -> str:
    request = urllib.request.Request(url, headers=headers, method="HEAD")  # noqa: S310
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        return str(answer.headers["Docker-Content-Digest"])


def raise_images(text: str, tags: dict[str, str]) -> str:
    """Return a file's text with the tags that are named, and each tag's digest of today."""

    def replace(found: re.Match[str]) -> str:
        registry, name = found["registry"], found["name"]
        tag = tags.get(name, found["tag"])
        return f"{registry}/{name}:{tag}@{fetch_digest(REGISTRIES.get(registry, f'https://{registry}'), name, tag)}"

    return IMAGE.sub(replace, text)


if __name__ == "__main__":
    named = dict(argument.split("=", 1) for argument in sys.argv[1:])
    for path in FILES:
        path.write_text(raise_images(path.read_text(encoding="utf-8"), named), encoding="utf-8")
