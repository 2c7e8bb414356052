"""Requests and answers of the Open Inference Protocol, in JSON."""

from typing import Any

import numpy as np

from tests.handlers.serving import Answer

DATATYPES = {str: "BYTES", int: "INT64", float: "FP32"}


def inquiry(**tensors: list[Any]) -> dict[str, Any]:
    """A row that asks with these tensors, [B, 1] each."""
    inputs = [
        {"name": name, "datatype": DATATYPES[type(data[0])], "shape": [len(data), 1], "data": data}
        for name, data in tensors.items()
    ]
    return {"body": {"inputs": inputs}}


def columns(answer: Answer) -> dict[str, Any]:
    """Output name -> its values, nested as its shape is."""
    assert answer.status == 200, answer
    outputs = answer.body["outputs"]
    return {output["name"]: np.array(output["data"], object).reshape(output["shape"]).tolist() for output in outputs}
