"""The Indexed Job of deploy/kubernetes/jobs: Kubernetes takes it, and `torchserve-client` takes its command."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.bulk_job import JOBS, command, job
from torchserve_client.cli import parser
from torchserve_client.inputs import Shard


def documents() -> list[dict[str, Any]]:
    files = [JOBS / name for name in ("bulk-scoring.yaml", "claims.yaml")]
    return [each for file in files for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


# Older ones have no backoffLimitPerIndex in their strict schema, or only behind a feature gate.
@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_job_and_claims_are_those_of_kubernetes(version: str) -> None:
    for document in documents():
        kubernetes_validate.validate(document, version, strict=True)


def test_shards_of_the_job_are_its_indices() -> None:
    count = job()["spec"]["completions"]
    options = [parser().parse_args(command(index)[1:]) for index in range(count)]
    assert [each.shard for each in options] == [Shard(index, count) for index in range(count)]
    assert {(each.command, str(each.path), str(each.out)) for each in options} == {("predict", "/inputs", "/answers")}
