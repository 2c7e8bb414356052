"""Settings of models of tensors; see handlers.config."""

from typing import Annotated, Any, Literal

from pydantic import Field, Strict
from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, HandlerConfig, doc, from_mapping

_Unsigned = Literal["BOOL", "UINT8", "UINT16", "UINT32", "UINT64"]
Datatype = _Unsigned | Literal["INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES"]
# A YAML list is a list; only its length and values are checked. The protocol's reader accepts 16 dimensions.
Shape = Annotated[tuple[Annotated[int, Field(ge=-1)], ...], Strict(False), Field(min_length=1, max_length=16)]
RowShape = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Strict(False), Field(max_length=15)]
Dimension = Annotated[int, Field(ge=0, le=15)]


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Padding:
    """How rows of different sizes share a micro-batch."""

    mask: str = Field(
        description="The input that marks the positions of a row with 1 and its padding with 0. It has the batch "
        "dimension and the free ones, in their order. The server makes it; a client may send it for its own positions."
    )
    value: float | int | bool = doc(0, "The value of padded positions.")


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TensorConfig:
    """Properties of a tensor that the model's own file lacks or that replace the file's."""

    datatype: Datatype | None = doc(None, "The datatype of its elements, by the protocol's name.")
    shape: Shape | None = doc(
        None, "The sizes of all dimensions, the batch dimension included; -1 if the request decides it."
    )
    batch_dim: Dimension = doc(0, "The dimension that counts rows.")


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class InputConfig(TensorConfig):
    """An input of the model."""

    pad: Annotated[Padding | None, from_mapping(Padding)] = doc(
        None, "Pads rows of different sizes to the largest of their micro-batch; without it, they run apart."
    )


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class OutputConfig(TensorConfig):
    """An output of the model."""

    follows: str | None = doc(
        None,
        "A padded input with the same free dimensions, in order; each row of the output is cut to the row's own sizes.",
    )


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TensorsConfig(HandlerConfig):
    """Settings of a model of tensors.

    If all sizes are fixed, an item is one row and counts one token. If dimensions are free, it counts as many tokens as
    it has positions along them, so `max_batch_tokens` limits these. `inputs` and `outputs` are by name; the outputs of
    a function or a TorchScript file are in the order of the model's.
    """

    engine: Literal["auto", "openvino", "onnxruntime", "torch"] = Field(  # type: ignore[assignment] # one more
        default="auto",
        description="The library that runs the model; `auto` selects onnxruntime if OpenVINO cannot run it.",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = doc(
        "fp32",
        "The engine's arithmetic. `auto` is fp32 on a CPU: nothing compares the answers in bf16, which not every model "
        "tolerates.",
    )
    allow_non_finite: bool = doc(
        False,
        "Whether inputs may contain NaN and infinity. Without it such a row returns 422: OpenVINO's ReLU "
        "and max pooling turn NaN into a plausible number.",
    )
    inputs: dict[str, Annotated[InputConfig, from_mapping(InputConfig)]] = Field(
        default_factory=dict, description="Properties of the inputs."
    )
    outputs: dict[str, Annotated[OutputConfig, from_mapping(OutputConfig)]] = Field(
        default_factory=dict, description="Properties of the outputs."
    )
    constants: dict[str, Any] = Field(
        default_factory=dict,
        description="The value of each input that every row shares, such as a scalar; requests omit it.",
    )
    warm_up: Annotated[tuple[dict[str, RowShape], ...], Strict(False)] = doc(
        (),
        "Sizes of likely rows, by input: the model runs at them before its first request. The default is "
        "32 for free dimensions.",
    )
