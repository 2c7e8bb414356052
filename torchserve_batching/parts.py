"""Files that `init DIR` writes beside the example, or in its place.

--with PART            for production, with the paths and the user of this installation
--task T --weights W   the list and the settings of your own model
"""

import getpass
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import yaml

from deploy.places import ROOT
from torchserve_client.version import VERSION

EXAMPLE = ("colour*", "hex_*", "tests")  # files of the project that are an example's
LIST = "# Raise `version` with each change, so that servers can go back to the one before.\n"
CONFIG = "responseTimeout: 60\n"
ARCH = "# handler: {arch: resnet50} # the network, which a checkpoint of torchvision needs\n"
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


class OwnModel(NamedTuple):
    task: str
    weights: str

    def write(self, folder: Path) -> None:
        """Write them into a folder; ValueError, with one line, if the task or the weights do not exist."""
        from deploy.archives.tasks import BUILT_IN  # noqa: PLC0415

        if (task := BUILT_IN.get(self.task)) is None:
            raise ValueError(f"--task {self.task} is not one of {', '.join(BUILT_IN)}")
        path = Path(self.weights)
        weights: str | dict[str, str] = str(path.resolve())
        if task.takes_hub_ids and not path.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", self.weights):
            weights = {"hub": self.weights}
        elif not path.exists():
            raise ValueError(f"--weights {self.weights}: no such file or folder")
        name = re.sub(r"[^\w-]+", "-", path.stem if path.is_file() else path.name).strip("-") or self.task
        entry = {name: {"task": self.task, "version": "1.0", "weights": weights}}
        (folder / "models.yaml").write_text(LIST + yaml.safe_dump(entry, sort_keys=False), encoding="utf-8")
        has_arch = path.is_file() and any(task.replaces)  # by networks of torchvision
        (folder / name).mkdir()
        (folder / name / "model-config.yaml").write_text(CONFIG + (ARCH if has_arch else ""), encoding="utf-8")
