"""Reads a config.properties as Java does, and keeps of it what others than TorchServe must know.

text -> names and values (lines may go on, the last of a name wins) -> Settings
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handlers.errors import InvalidConfig
from torchserve_client.transport import address

# An odd number of backslashes at a line's end: it goes on in the next one.
GOES_ON = re.compile(r"(?<!\\)(?:\\\\)*\\$")
NAME_AND_VALUE = re.compile(r"(?P<name>[^\s=:]+)\s*[=:\s]\s*(?P<value>.*)", re.DOTALL)
LOG_CONFIG = re.compile(r"(?<=-Dlog4j2\.configurationFile=)\S+")
HEAP = re.compile(r"-Xmx(\d+[kmg]?)(?:\s|$)", re.IGNORECASE)
DIRECT_MEMORY = re.compile(r"-XX:MaxDirectMemorySize=(\d+[kmg]?)(?:\s|$)", re.IGNORECASE)
UNITS = {"k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a config.properties that others must know; TorchServe's defaults stand for what it leaves out.

    Attributes:
        inference_url, management_url, metrics_url: where it answers HTTP.
        ports: the setting that a listening port comes from -> its host and port.
        model_store: folder of archives, relative to where the server runs.
        has_tokens: whether every call needs a key of key_file.json.
        has_model_api: whether models can be registered and unregistered while it runs.
        load_models: what it registers as it starts: file names of archives, or NAME=FILE, or "all".
        models: name -> version -> settings of what it registers as it starts.
        job_queue_size: requests that wait for a worker, per model, where its archive does not say.
        max_request_size: bytes of the largest body.
        heap_bytes: most that the Java heap takes; None where vmargs does not say.
        direct_bytes: most that Java takes beside it for what goes through sockets; the heap's size where unsaid.
    """

    inference_url: str = "http://127.0.0.1:8080"
    management_url: str = "http://127.0.0.1:8081"
    metrics_url: str = "http://127.0.0.1:8082"
    ports: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    model_store: str = "model_store"
    has_tokens: bool = True
    has_model_api: bool = False
    load_models: tuple[str, ...] = ()
    models: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    job_queue_size: int = 100
    max_request_size: int = 6_553_500
    heap_bytes: int | None = None
    direct_bytes: int | None = None

    @classmethod
    def read(cls, path: Path) -> "Settings":
        """Parse a config.properties.

        Raises:
            InvalidConfig: `models` is no JSON, or a number or an address is none.
        """
        values = parse(path.read_text(encoding="utf-8"))
        addresses = {
            "inference_url": values.get("inference_address", cls.inference_url),
            "management_url": values.get("management_address", cls.management_url),
            "metrics_url": values.get("metrics_address", cls.metrics_url),
        }
        vmargs = values.get("vmargs", "")
        heap_bytes = _bytes(HEAP, vmargs)
        try:
            urls = {name: address(url) for name, url in addresses.items()}
            return cls(
                **urls,
                ports=_ports(values, urls),
                model_store=values.get("model_store", cls.model_store),
                has_tokens=values.get("disable_token_authorization", "false").lower() != "true",
                has_model_api=values.get("enable_model_api", "false").lower() == "true",
                load_models=tuple(name.strip() for name in values.get("load_models", "").split(",") if name.strip()),
                models=json.loads(values.get("models", "{}")),
                job_queue_size=int(values.get("job_queue_size", cls.job_queue_size)),
                max_request_size=int(values.get("max_request_size", cls.max_request_size)),
                heap_bytes=heap_bytes,
                direct_bytes=_bytes(DIRECT_MEMORY, vmargs) or heap_bytes,
            )
        except ValueError as error:
            raise InvalidConfig(f"{path.name}: {error}") from None


def parse(text: str) -> dict[str, str]:
    """Split a config.properties into names and values; escapes other than a line's end stay as they are."""
    found: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        whole = line.strip()
        if not whole or whole.startswith(("#", "!")):
            continue
        while GOES_ON.search(whole):
            whole = whole[:-1] + next(lines, "").strip()
        if match := NAME_AND_VALUE.fullmatch(whole):
            found[match["name"]] = match["value"]
    return found


def moved(text: str, root: Path, replaced: Mapping[str, str]) -> str:
    """Another server's configuration: the same, but for what is replaced.

    Args:
        text: a config.properties.
        root: what its relative paths are relative to; they become absolute.
        replaced: names and values of the other server.

    Returns:
        Its config.properties; lines that stay keep their order, those that are replaced follow.
    """
    others = dict(replaced)
    kept = []
    for line in text.splitlines():
        key, separator, value = (part.strip() for part in line.partition("="))
        if not separator or line.lstrip().startswith("#"):
            kept.append(line)
        elif key == "metrics_config":
            others[key] = str(root / value)
        elif key == "vmargs":
            others[key] = LOG_CONFIG.sub(lambda match: str(root / match[0]), value)
        elif key not in others:
            kept.append(line)
    return "\n".join([*kept, *(f"{key}={value}" for key, value in others.items())]) + "\n"


def _ports(values: Mapping[str, str], urls: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """Every port that the server listens on."""
    found = {}
    for name, url in urls.items():
        host, _, port = url.rpartition("//")[2].partition(":")
        found[name.replace("_url", "_address")] = (host, int(port))
    for api, default in (("inference", 7070), ("management", 7071)):
        host = values.get(f"grpc_{api}_address", "127.0.0.1")
        found[f"grpc_{api}_port"] = (host, int(values.get(f"grpc_{api}_port", default)))
    return found


def _bytes(pattern: re.Pattern[str], vmargs: str) -> int | None:
    """The last size that vmargs names, as Java takes it."""
    sizes = pattern.findall(vmargs)
    if not sizes:
        return None
    size: str = sizes[-1].lower()
    return int(size[:-1]) * UNITS[size[-1]] if size[-1] in UNITS else int(size)
