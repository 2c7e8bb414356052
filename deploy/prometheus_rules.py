"""`python -m deploy.prometheus_rules`: the rules of deploy/prometheus/rules as Prometheus-operator takes them.

deploy/prometheus/rules/NAME.yml -> a PrometheusRule torchserve-NAME -> components/monitoring/rules.yaml
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from deploy.models import ROOT

RULES = ROOT / "deploy" / "prometheus" / "rules"
FILE = ROOT / "deploy" / "kubernetes" / "components" / "monitoring" / "rules.yaml"
NOTE = "# Written by python -m deploy.prometheus_rules of deploy/prometheus/rules.\n"


def prometheus_rule(path: Path) -> dict[str, Any]:
    """Make the object of a file of rules; its groups are the file's own."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": f"torchserve-{path.stem}",
            "labels": {
                "app.kubernetes.io/name": "torchserve",
                "app.kubernetes.io/component": "rules",
                # What a Prometheus of kube-prometheus-stack selects rules by.
                "release": "prometheus",
            },
        },
        "spec": yaml.safe_load(path.read_text(encoding="utf-8")),
    }


def text(folder: Path = RULES) -> str:
    """Make the whole file."""
    objects = [prometheus_rule(path) for path in sorted(folder.glob("*.yml"))]
    return NOTE + yaml.safe_dump_all(objects, sort_keys=False, width=120)


def main(arguments: list[str]) -> int:
    """Write it."""
    parser = argparse.ArgumentParser(prog="python -m deploy.prometheus_rules", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=FILE, metavar="PATH")
    parser.parse_args(arguments).out.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
