"""OpenVINO's graph of a small network, written layer by layer: a conversion takes seconds."""

from pathlib import Path
from typing import Any

import openvino
import torch
from openvino import opset13 as opset


def follow(network: torch.nn.Sequential, node: Any) -> Any:
    """Continue a graph with the layers of a network of convolutions and linear layers."""
    for layer in network:
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            weight, bias = (each.detach().numpy() for each in layer.parameters())
        if isinstance(layer, torch.nn.Conv2d):
            node = opset.convolution(node, weight, [*layer.stride], [0, 0], [0, 0], [1, 1])
            node = opset.add(node, bias.reshape(1, -1, 1, 1))
        elif isinstance(layer, torch.nn.Linear):
            node = opset.add(opset.matmul(node, weight, False, True), bias)
        else:
            is_flatten = isinstance(layer, torch.nn.Flatten)
            node = opset.reshape(node, [0, -1], special_zero=True) if is_flatten else opset.relu(node)
    return node


def save(result: Any, parameter: Any, names: tuple[str, str], path: Path) -> None:
    model = openvino.Model([result], [parameter], "tiny")
    for port, name in zip((model.inputs[0], model.outputs[0]), names, strict=True):
        port.get_tensor().set_names({name})
    openvino.save_model(model, path, compress_to_fp16=False)
