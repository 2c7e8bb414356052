"""Files for production that `init DIR --with PART` writes, with the paths and the user of this installation."""

import getpass
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from deploy.places import ROOT
from torchserve_client.version import VERSION

# Part -> path in the installation -> path in the project.
PARTS = {
    "container": {"container/Containerfile": "Containerfile"},
    "gateway": {"deploy/gateway.yaml": "gateway.yaml"},
    "monitoring": {
        "deploy/prometheus/prometheus.yml": "monitoring/prometheus.yml",
        "deploy/prometheus/rules": "monitoring/rules",
        "deploy/grafana": "monitoring/grafana",
    },
    "production": {"config.production.properties": "config.production.properties"},
    "systemd": {"deploy/nodes/run/systemd": "systemd"},
}
ADAPT = re.compile(r" Adapt User and the paths: /srv/torchserve\n# is your project[^\n]*|Documentation=file:[^\n]*\n")


def write_parts(names: Iterable[str], new: Path, folder: Path) -> None:
    """Write parts into the folder `new`, whose files will be in `folder`."""
    for name in names:
        for source, place in PARTS[name].items():
            path = Path(__file__).parent / source if name == "container" else ROOT / source
            (new / place).parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, new / place, copy_function=shutil.copyfile)
            else:
                shutil.copyfile(path, new / place)
    program, here = shutil.which("torchserve-batching") or f"{sys.executable} -m torchserve_batching", folder.resolve()
    replaced = {
        "/srv/torchserve/.venv/bin/torchserve-batching": program,
        "/srv/torchserve": str(here),
        "User=torchserve": f"User={getpass.getuser()}",
        "torchserve-batching==VERSION": f"torchserve-batching=={VERSION}",
        "gateway:8002": "localhost:8002",  # a service of compose, as the next one
        "//prometheus:9090": "//localhost:9090",
        "/etc/grafana/dashboards": str(here / "monitoring" / "grafana" / "dashboards"),
    }
    for path in new.rglob("*"):
        if path.suffix in (".service", ".yml") or path.name == "Containerfile":
            text = ADAPT.sub("", path.read_text(encoding="utf-8"))
            for old, own in replaced.items():
                text = text.replace(old, own)
            path.write_text(text, encoding="utf-8")
