"""`init --task TASK --weights PATH|ORGANISATION/NAME`: the list and the settings of your own model."""

import re
from pathlib import Path
from typing import NamedTuple

import yaml

EXAMPLE = ("colour*", "hex_*", "tests")  # files of the project that are an example's
LIST = "# Raise `version` with each change, so that servers can go back to the one before.\n"
CONFIG = "responseTimeout: 60\n"
ARCH = "# handler: {arch: resnet50} # the network, which a checkpoint of torchvision needs\n"


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
