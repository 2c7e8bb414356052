"""Settings of models that take tensors and give tensors; see handlers.config."""

from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field, Strict
from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, HandlerConfig, nested

_Unsigned = Literal["BOOL", "UINT8", "UINT16", "UINT32", "UINT64"]
Datatype = _Unsigned | Literal["INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES"]
# A YAML list is a list; only its length and values are checked. 16 dimensions are what the protocol's reader takes.
Shape = Annotated[tuple[Annotated[int, Field(ge=-1)], ...], Strict(False), Field(min_length=1, max_length=16)]
RowShape = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Strict(False), Field(max_length=15)]
Dimension = Annotated[int, Field(ge=0, le=15)]


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Padding:
    """How rows of different sizes share a micro-batch.

    Attributes:
        mask: the input that tells the model which positions of a row are its own: 1 there and 0 where it is padded. It
            has the batch dimension and the free ones, in their order. The server makes it; a client that sends it says
            which of its own positions count.
        value: what fills the others.
    """

    mask: str
    value: float | int | bool = 0


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TensorConfig:
    """What is to be known of a tensor beside the model's own description, or in its stead.

    Attributes:
        datatype: of its elements, as the Open Inference Protocol names them.
        shape: with the batch dimension; -1 where a size is the request's.
        batch_dim: the dimension that counts rows.
    """

    datatype: Datatype | None = None
    shape: Shape | None = None
    batch_dim: Dimension = 0


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class InputConfig(TensorConfig):
    """An input of the model.

    Attributes:
        pad: rows of different sizes are padded to the largest of their micro-batch; without it, they run apart.
    """

    pad: Annotated[Padding | None, nested(Padding)] = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class OutputConfig(TensorConfig):
    """An output of the model.

    Attributes:
        follows: a padded input; the free dimensions of this output are those of that input, in order, and each row's
            are cut to its own sizes.
    """

    follows: str | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TensorsConfig(HandlerConfig):
    """Settings of a model of tensors. Of a fixed shape, an item is one row and counts one token; where dimensions are
    free, it counts as many tokens as it has positions along them, so `max_batch_tokens` is a budget of these.

    Attributes:
        engine: see HandlerConfig; onnxruntime runs ONNX files, and `auto` takes it where OpenVINO cannot.
        precision: the engine's arithmetic. fp32, since it is not known what the model bears; `auto` is the faster
            of that and bf16, where the processor has bf16.
        allow_non_finite: whether inputs may contain NaN and infinity. Without it such a row is a 422: OpenVINO's ReLU
            and max pooling turn NaN into a plausible number.
        inputs, outputs: what the model's own file does not say, by name; those of a function's outputs, and of a
            TorchScript file's, in their order.
        constants: the value of each input that every row shares, such as a scalar: requests do not have it.
        warm_up: sizes of likely rows, by input: the model is run at them before its first request. Without any, free
            dimensions are taken to be 32.
    """

    engine: Literal["auto", "openvino", "onnxruntime", "torch"] = "auto"  # type: ignore[assignment] # one more
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = "fp32"
    allow_non_finite: bool = False
    inputs: dict[str, Annotated[InputConfig, nested(InputConfig)]] = field(default_factory=dict)
    outputs: dict[str, Annotated[OutputConfig, nested(OutputConfig)]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    warm_up: Annotated[tuple[dict[str, RowShape], ...], Strict(False)] = ()
