"""The Indexed Job of deploy/kubernetes/jobs: Kubernetes takes it, and `torchserve-client` takes its command."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.bulk_job import JOBS, command, job
from torchserve_client.cli import parser
from torchserve_client.shards import Shard

# Older ones have no backoffLimitPerIndex in their strict schema, or only behind a feature gate.
VERSIONS = ("1.29", "1.37")


def documents() -> list[dict[str, Any]]:
    files = [JOBS / name for name in ("bulk-scoring.yaml", "claims.yaml")]
    return [each for file in files for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("version", VERSIONS)
def test_job_and_claims_are_those_of_kubernetes(version: str) -> None:
    for document in documents():
        kubernetes_validate.validate(document, version, strict=True)


def test_field_that_kubernetes_does_not_know_is_an_error() -> None:
    wrong = job()
    wrong["spec"]["backoffLimitPerIndices"] = wrong["spec"].pop("backoffLimitPerIndex")
    with pytest.raises(kubernetes_validate.ValidationError, match="backoffLimitPerIndices"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_shards_of_the_job_are_its_indices() -> None:
    count = job()["spec"]["completions"]
    options = [parser().parse_args(command(index)[1:]) for index in range(count)]
    assert [each.shard for each in options] == [Shard(index, count) for index in range(count)]
    assert {each.command for each in options} == {"predict"}
    assert {str(each.path) for each in options} == {"/inputs"}
    assert {str(each.out) for each in options} == {"/answers"}


def test_job_writes_nowhere_but_into_its_answers() -> None:
    pod = job()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = {each["mountPath"]: each.get("readOnly", False) for each in container["volumeMounts"]}
    assert mounts == {"/inputs": True, "/answers": False, "/tmp": False}  # noqa: S108
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    claims = {each["metadata"]["name"] for each in documents() if each["kind"] == "PersistentVolumeClaim"}
    asked = (each.get("persistentVolumeClaim") for each in pod["volumes"])
    assert {each["claimName"] for each in asked if each} == claims


def test_kustomization_takes_the_job_and_leaves_the_claims() -> None:
    kustomization = yaml.safe_load((JOBS / "kustomization.yaml").read_text(encoding="utf-8"))
    assert kustomization["resources"] == ["bulk-scoring.yaml"]
