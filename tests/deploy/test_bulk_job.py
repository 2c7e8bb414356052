"""The Job of deploy/kubernetes/jobs: Kubernetes takes it, and `torchserve-client` takes its command."""

import kubernetes_validate
import yaml

from deploy.models import ROOT
from torchserve_client.cli import parser

JOBS = ROOT / "deploy" / "kubernetes" / "jobs"


def test_job_and_claims_are_those_of_kubernetes_and_the_command_is_the_clients() -> None:
    files = [JOBS / name for name in ("bulk-scoring.yaml", "claims.yaml")]
    job, *claims = [each for file in files for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))]
    for document in (job, *claims):
        kubernetes_validate.validate(document, "1.37", strict=True)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    options = parser().parse_args(container["args"][1:])
    assert (options.command, str(options.path), str(options.out)) == ("predict", "/inputs", "/answers/answers.jsonl")
