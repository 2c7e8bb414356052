"""What a model says of its precisions reaches who asks a gateway."""

import json

from deploy.gateway.control.description import configuration
from deploy.gateway.state import Fleet, Model, Version
from tests.deploy.gateway.canned import metadata, node, replica

PROOF = {"measure": "top-1", "agreement": 0.99, "largest_change": 0.08, "samples": 100, "least": 0.98}


def test_configuration_tells_the_precision_and_every_proof_as_parameters() -> None:
    said = {**metadata("resnet-152"), "precision": "bf16", "proofs": {"bf16": PROOF, "int8": PROOF}}
    version = Version("1.0", {"a": replica()}, said)
    fleet = Fleet(nodes={"a": node("a")}, models={"m": Model("m", {"1.0": version}, "1.0")})
    parameters = configuration(fleet, "m")["parameters"]
    assert parameters.pop("precision") == {"string_value": "bf16"}
    assert {name: json.loads(each["string_value"]) for name, each in parameters.items()} == {
        "proof.bf16": PROOF,
        "proof.int8": PROOF,
    }
