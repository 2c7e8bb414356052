"""Archives of tensor models as a worker finds them, staged by hand: what the builder writes, without the builder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tritonclient.http import InferResult

from handlers.protocol.tensors import DTYPES, datatype_of, to_binary, to_json
from handlers.tasks.tensors import TensorsHandler
from handlers.tensor_models.signature import SIGNATURE, DeclaredSignature
from tests.handlers import serving
from tests.handlers.batching.frontend import Frontend
from tests.handlers.batching.gated import SCHEDULING
from tests.handlers.serving import Answer, serve, started

# An engine of one thread: the tests' processes share the cores.
SETTINGS: dict[str, Any] = {"threads": 1}
Body = dict[str, Any]


def function(folder: Path, source: str, **settings: Any) -> TensorsHandler:
    (folder / "function").mkdir(parents=True)
    (folder / "function" / "infer.py").write_text("import numpy as np\n\n" + source, encoding="utf-8")
    return loaded(folder, settings)


def scripted(folder: Path, module: torch.nn.Module, said: DeclaredSignature, **settings: Any) -> TensorsHandler:
    folder.mkdir(parents=True, exist_ok=True)
    torch.jit.script(module.eval()).save(str(folder / "model.pt"))  # type: ignore[no-untyped-call]
    (folder / SIGNATURE).write_text(said.to_json())
    return loaded(folder, {"engine": "torch", **settings})


def loaded(folder: Path, settings: Mapping[str, Any]) -> TensorsHandler:
    settings = {**SETTINGS, **settings}
    if "scheduling" not in settings:
        return started(TensorsHandler(), folder, settings)
    settings["scheduling"] = {**SCHEDULING, **settings["scheduling"]}
    return started(TensorsHandler(), folder, settings, **serving.ADAPTIVE)


ADAPTIVE: dict[str, Any] = {"scheduling": {"mode": "adaptive"}}
in_both_modes = pytest.mark.parametrize("mode", [pytest.param({}, id="classic"), pytest.param(ADAPTIVE, id="adaptive")])
DATATYPES = sorted(DTYPES)


def values(datatype: str, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Anything that a datatype has and that all forms of requests can carry; numbers of BF16 as float32."""
    noise, dtype = np.random.default_rng(seed), DTYPES[datatype]
    if dtype.kind == "O":
        return np.asarray(noise.choice(["", "a", "é", "漢字", '"\\', "x" * 20], shape), object)
    if dtype.kind == "b":
        return np.asarray(noise.integers(0, 2, shape), bool)
    if dtype.kind in "iu":
        bounds: Any = np.iinfo(dtype.char)
        return np.asarray(noise.integers(bounds.min, bounds.max, shape, dtype.type, endpoint=True))
    # Quarters are exact in every type, and in JSON.
    return np.asarray(noise.integers(-64, 64, shape) / 4, np.float32 if dtype.kind == "V" else dtype)


def as_json(document: Any) -> Body:
    return {"body": json.dumps(document).encode()}


def instances(*values: Any) -> Body:
    return as_json({"instances": list(values)})


def inputs(**values: Any) -> Body:
    return as_json({"inputs": values})


def inference(arrays: Mapping[str, NDArray[Any]], is_binary: bool = False, **document: Any) -> tuple[Body, Body]:
    tensors, parts = [], []
    for name, array in arrays.items():
        if is_binary:
            parts.append(to_binary(array))
        data = {"parameters": {"binary_data_size": len(parts[-1])}} if is_binary else {"data": list_of(array.ravel())}
        tensors.append({"name": name, "datatype": datatype_of(array), "shape": list(array.shape), **data})
    if is_binary:
        document = {"parameters": {"binary_data_output": True}, **document}
    written = json.dumps({"inputs": tensors, **document}).encode()
    headers = {"Inference-Header-Content-Length": str(len(written))} if is_binary else {}
    return {"body": written + b"".join(parts)}, headers


def inquiry(**rows: list[Any]) -> Body:
    """A value for each row of each tensor."""
    columns = {name: np.array(each, object if isinstance(each[0], str) else None) for name, each in rows.items()}
    return inference({name: each[:, np.newaxis] for name, each in columns.items()})[0]


def list_of(array: NDArray[Any]) -> Any:
    if array.dtype == object:
        return to_text(array).tolist()
    written = to_json(array)
    return written.tolist() if isinstance(written, np.ndarray) else written


to_text = np.vectorize(lambda each: each.decode() if isinstance(each, bytes) else each, otypes=[object])


def ask(handler: TensorsHandler, body: Body, headers: Body | None = None) -> Answer:
    (answer,) = serve(handler, [body], [headers or {}])
    return answer


def answers(handler: TensorsHandler, sent: Sequence[tuple[Body, Body]]) -> list[Answer]:
    if handler.config.scheduling.mode == "classic":
        return serve(handler, [body for body, _ in sent], [headers for _, headers in sent])
    with Frontend(handler) as frontend:
        return frontend.send_together(*((body["body"], headers) for body, headers in sent))


def plainly(handler: TensorsHandler, *bodies: Body) -> list[Answer]:
    return answers(handler, [(body, {}) for body in bodies])


def columns(answer: Answer) -> dict[str, NDArray[Any]]:
    """The outputs of an Open Inference answer, JSON or binary, as Triton's own client reads them, bytes as text."""
    assert answer.status == 200, answer
    length = answer.headers.get("Inference-Header-Content-Length")
    body = answer.body if length else json.dumps(answer.body).encode()
    result = InferResult.from_response_body(body, header_length=int(length) if length else None)
    arrays = {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}
    return {name: to_text(array) if array.dtype == object else array for name, array in arrays.items()}
