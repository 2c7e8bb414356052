"""`python -m deploy.inference_services`: an InferenceService of KServe for each model of the list.

examples/models.yaml + each model-config.yaml + the base's config.properties
    -> NAME.yaml          what KServe runs
    -> NAME.properties    TorchServe's settings, which name its archive
    -> kustomization.yaml both, for every model; names.yaml has where KServe's objects name a ConfigMap
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from deploy.models import MODEL_LIST, ROOT, Model, models
from deploy.modes import archived
from deploy.run.properties import parse

KUBERNETES = ROOT / "deploy" / "kubernetes"
BASE = KUBERNETES / "base" / "config.properties"
FOLDER = KUBERNETES / "overlays" / "kserve" / "models"
RUNTIME, FORMAT = "torchserve-batching", "torch-model-archive"
# Every archive lies at the root of the base's claim; the configuration names the one that is served.
STORAGE = "pvc://torchserve-models"
# Where KServe mounts it.
STORE = "/mnt/models"
# Seconds: base/node.yaml says why, and the edge of the pod takes requests for 20 s before its node drains.
GRACE_S = 210
NOTE = "# Written by python -m deploy.inference_services.\n"


def properties(model: Model, base: Mapping[str, str]) -> str:
    """TorchServe's settings of one model; what its archive says of batches is said here too, which it wins over."""
    archive = archived(model)
    entry = {
        "defaultVersion": "true",
        "marName": f'"{model.name}.mar"',
        "minWorkers": "1",
        "maxWorkers": "1",
        "batchSize": str(archive.get("batchSize", 1)),
        "maxBatchDelay": str(archive.get("maxBatchDelay", 1)),
    }
    fields = ", ".join(f'"{name}": {value}' for name, value in entry.items())
    named = {
        "load_models": f"{model.name}.mar",
        "models": f'{{"{model.name}": {{"{model.version}": {{{fields}}}}}}}',
        "model_store": STORE,
    }
    return NOTE + "".join(f"{name}={value}\n" for name, value in {**base, **named}.items())


def inference_service(model: Model) -> dict[str, Any]:
    """What KServe is to run of one model."""
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": model.name,
            "labels": {"app.kubernetes.io/name": "torchserve", "app.kubernetes.io/component": "model"},
            "annotations": {
                # A Deployment and a Service; KServe before 0.16 calls it RawDeployment.
                "serving.kserve.io/deploymentMode": "Standard",
                # No autoscaler of KServe's: it goes by the processor, which is busy with one request as with fifty.
                "serving.kserve.io/autoscalerClass": "external",
            },
        },
        "spec": {
            "predictor": {
                "minReplicas": 1,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": GRACE_S,
                "securityContext": {"fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"},
                "deploymentStrategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
                },
                "model": {
                    "modelFormat": {"name": FORMAT, "version": "1"},
                    "runtime": RUNTIME,
                    "protocolVersion": "v2",
                    "storageUri": STORAGE,
                },
                "volumes": [{"name": "config", "configMap": {"name": f"torchserve-{model.name}"}}],
            }
        },
    }


def files(wanted: Mapping[str, Model], base: Path = BASE) -> dict[str, str]:
    """Make what the folder holds: file name -> text.

    Raises:
        InvalidConfig: a model's configuration is no mapping.
        OSError: one of the files cannot be read.
    """
    settings = parse(base.read_text(encoding="utf-8"))
    found = {}
    for name, model in wanted.items():
        found[f"{name}.yaml"] = NOTE + yaml.safe_dump(inference_service(model), sort_keys=False, width=120)
        found[f"{name}.properties"] = properties(model, settings)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{name}.yaml" for name in wanted],
        "configMapGenerator": [
            {"name": f"torchserve-{name}", "files": [f"config.properties={name}.properties"]} for name in wanted
        ],
        "configurations": ["names.yaml"],
    }
    names = {
        "nameReference": [
            {
                "kind": "ConfigMap",
                "version": "v1",
                "fieldSpecs": [{"kind": "InferenceService", "path": "spec/predictor/volumes/configMap/name"}],
            }
        ]
    }
    found["names.yaml"] = NOTE + yaml.safe_dump(names, sort_keys=False, width=120)
    found["kustomization.yaml"] = NOTE + yaml.safe_dump(kustomization, sort_keys=False, width=120)
    return found


def write(folder: Path, wanted: Mapping[str, str]) -> None:
    """Write the folder; files of models that the list no longer has go."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name not in wanted and path.read_text(encoding="utf-8").startswith(NOTE):
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Write the folder."""
    parser = argparse.ArgumentParser(prog="python -m deploy.inference_services", description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=Path, default=MODEL_LIST, metavar="PATH", help="another list of models")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER")
    options = parser.parse_args(arguments)
    write(options.out, files(models(options.models)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
