"""Reads a config.properties as Java does, and keeps the settings that programs other than TorchServe need.

text -> names and values (a backslash continues a line, the last value of a name wins) -> ServerSettings
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from handlers.errors import InvalidConfig
from torchserve_client.payloads import Json
from torchserve_client.transport import address

CONTINUES = re.compile(r"(?<!\\)(?:\\\\)*\\$")  # a line that ends in an odd number of backslashes continues
NAME_AND_VALUE = re.compile(r"(?P<name>[^\s=:]+)\s*[=:\s]\s*(?P<value>.*)", re.DOTALL)
LOG_CONFIG = re.compile(r"(?<=-Dlog4j2\.configurationFile=)\S+")
HEAP = re.compile(r"-Xmx(\d+[kmg]?)(?:\s|$)", re.IGNORECASE)
DIRECT_MEMORY = re.compile(r"-XX:MaxDirectMemorySize=(\d+[kmg]?)(?:\s|$)", re.IGNORECASE)
MIB = 2**20
UNITS = {"k": 2**10, "m": MIB, "g": 2**30}
# Memory limits of this process' control group, of version 2 and of version 1.
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of a config.properties; a setting that the file lacks has TorchServe's default."""

    inference_url: str = "http://127.0.0.1:8080"
    management_url: str = "http://127.0.0.1:8081"
    metrics_url: str = "http://127.0.0.1:8082"
    # The setting that a listening port comes from -> host and port.
    ports: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    model_store: str = "model_store"  # the folder of archives, relative to the server's working folder
    # The file of TorchServe's metrics, relative to the server's working folder.
    metrics_config: str = "deploy/metrics.yaml"
    has_tokens: bool = True  # whether every call needs a token of key_file.json
    token_min: float = 60  # minutes until a token expires
    has_model_api: bool = False  # whether models can be registered and unregistered while the server runs
    load_models: tuple[str, ...] = ()  # the archives to register at the start: file names, NAME=FILE, or "all"
    # Name -> version -> settings of the models to register at the start.
    models: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    job_queue_size: int = 100  # requests that wait for a worker, per model; an archive's own setting wins
    max_request_size: int = 6_553_500  # bytes of the largest body
    vmargs: str = ""  # Java's options
    plugins_path: str = ""  # jars beside TorchServe's own
    heap_bytes: int | None = None  # -Xmx in bytes; None without that option
    direct_bytes: int | None = None  # MaxDirectMemorySize in bytes; Java's default is the heap's size

    @classmethod
    def read(cls, path: Path) -> "ServerSettings":
        """Parse a config.properties; an InvalidConfig names an address, number or JSON value that is not valid."""
        values = parse(path.read_text(encoding="utf-8"))
        addresses = {
            "inference_url": values.get("inference_address", cls.inference_url),
            "management_url": values.get("management_address", cls.management_url),
            "metrics_url": values.get("metrics_address", cls.metrics_url),
        }
        vmargs = values.get("vmargs", "")
        heap_bytes = _parse_size(HEAP, vmargs)
        try:
            urls = {name: address(url) for name, url in addresses.items()}
            return cls(
                **urls,
                ports=_ports(values, urls),
                model_store=values.get("model_store", cls.model_store),
                metrics_config=values.get("metrics_config", cls.metrics_config),
                has_tokens=values.get("disable_token_authorization", "false").lower() != "true",
                token_min=float(values.get("token_expiration_min", cls.token_min)),
                has_model_api=values.get("enable_model_api", "false").lower() == "true",
                load_models=tuple(name.strip() for name in values.get("load_models", "").split(",") if name.strip()),
                models=json.loads(values.get("models", "{}")),
                job_queue_size=int(values.get("job_queue_size", cls.job_queue_size)),
                max_request_size=int(values.get("max_request_size", cls.max_request_size)),
                vmargs=vmargs,
                plugins_path=values.get("plugins_path", cls.plugins_path),
                heap_bytes=heap_bytes,
                direct_bytes=_parse_size(DIRECT_MEMORY, vmargs) or heap_bytes,
            )
        except ValueError as error:
            raise InvalidConfig(f"{path.name}: {error}") from None


def parse(text: str) -> dict[str, str]:
    """Split a config.properties into names and values; escapes other than a line's end stay unchanged."""
    found: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        whole = line.strip()
        if not whole or whole.startswith(("#", "!")):
            continue
        while CONTINUES.search(whole):
            whole = whole[:-1] + next(lines, "").strip()
        if match := NAME_AND_VALUE.fullmatch(whole):
            found[match["name"]] = match["value"]
    return found


def relocate_config(text: str, root: Path, replaced: Mapping[str, str]) -> str:
    """Return a config.properties with values `replaced`, and paths relative to `root` made absolute."""
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
    found = {}
    for name, url in urls.items():
        host, _, port = url.rpartition("//")[2].partition(":")
        found[name.replace("_url", "_address")] = (host, int(port))
    for api, default in (("inference", 7070), ("management", 7071)):
        host = values.get(f"grpc_{api}_address", "127.0.0.1")
        found[f"grpc_{api}_port"] = (host, int(values.get(f"grpc_{api}_port", default)))
    return found


def _parse_size(pattern: re.Pattern[str], vmargs: str) -> int | None:
    """Return the last size in vmargs that matches, in bytes, as Java reads it."""
    sizes = pattern.findall(vmargs)
    if not sizes:
        return None
    size: str = sizes[-1].lower()
    return int(size[:-1]) * UNITS[size[-1]] if size[-1] in UNITS else int(size)


def excess_memory(settings: ServerSettings) -> str | None:
    """Return one line if vmargs exceeds the memory limit; None if Java fits."""
    limits = [int(path.read_text()) for path in LIMITS if path.is_file() and path.read_text().strip().isdecimal()]
    limit = min([psutil.virtual_memory().total, *limits])
    java = (settings.heap_bytes or 0) + (settings.direct_bytes or 0)
    if java <= limit:
        return None
    return (
        f"vmargs lets Java take {java // MIB} MiB (-Xmx and MaxDirectMemorySize), and the memory limit is "
        f"{limit // MIB} MiB; lower them, and job_queue_size or max_request_size with them"
    )
