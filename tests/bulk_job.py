"""The Indexed Job of deploy/kubernetes/jobs, and the command of each of its pods."""

from typing import Any

import yaml

from deploy.models import ROOT

JOBS = ROOT / "deploy" / "kubernetes" / "jobs"


def job() -> dict[str, Any]:
    """The Job as it is applied."""
    loaded: dict[str, Any] = yaml.safe_load((JOBS / "bulk-scoring.yaml").read_text(encoding="utf-8"))
    return loaded


def command(index: int) -> list[str]:
    """The arguments of one pod, as the kubelet expands them."""
    (container,) = job()["spec"]["template"]["spec"]["containers"]
    return [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in container["args"]]
