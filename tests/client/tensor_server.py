"""A server of one model of tensors on a real socket, as TorchServe answers or as the gateway does.

It is the model of PyTriton's own tutorial: INPUT_1 comes back as OUTPUT_1, two rows at a time. A row of negative
numbers fails by itself.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import numpy as np

MODEL, ROWS = "Batch2", 2
TENSORS = {
    "inputs": [{"name": "INPUT_1", "datatype": "INT32", "shape": [-1, 1]}],
    "outputs": [{"name": "OUTPUT_1", "datatype": "INT32", "shape": [-1, 1]}],
}
HANDLERS = {"name": MODEL, "version": "1.0", "platform": "torchserve_function", **TENSORS, "max_batch_size": ROWS}
LENGTH = "Inference-Header-Content-Length"


@dataclass
class TensorServer:
    """What it is, and what it was asked.

    Attributes:
        role: whose paths and errors it has; "silent" answers nothing, "stock" is TorchServe with a handler that knows
            no metadata.
        unready: requests that are still answered 503, as of a model whose worker is being loaded.
        delay_s: seconds that an inference takes.
        metadata: what the model says of itself.
        asked: method, path and headers of each request, in order.
        rows: of each inference, in order.
    """

    role: Literal["torchserve", "gateway", "silent", "stock"] = "torchserve"
    unready: int = 0
    delay_s: float = 0
    metadata: dict[str, Any] = field(default_factory=lambda: dict(HANDLERS))
    asked: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    parameters: list[dict[str, Any]] = field(default_factory=list)
    datatypes: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    url: str = ""
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def paths(self) -> list[str]:
        """Method and path of each request."""
        return [f"{method} {path}" for method, path, _ in self.asked]

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any, bytes]:
        """Answer a request: status, JSON document, binary tensors behind it."""
        self.asked.append((method, path, headers))
        if self.role == "silent":
            self.released.wait(60)
        try:
            if path.startswith("/predictions/"):
                return self._of_model(path, headers, body)
            return 200, self._of_gateway(path) if self.role == "gateway" else self._of_torchserve(path), b""
        except _Refused as refused:
            return refused.status, refused.document, b""

    def _of_torchserve(self, path: str) -> Any:
        if path == "/ping":
            return {"status": "Healthy"}
        raise _Refused(404, "ResourceNotFoundException", "Requested resource is not found.")

    def _of_gateway(self, path: str) -> Any:
        self._take_unready()
        model = f"/v2/models/{MODEL}"
        described = {"name": MODEL, "versions": ["1.0"], "platform": "torchserve_function", **TENSORS}
        texts = {f"proof.{name}": json.dumps(proof) for name, proof in self.metadata.get("proofs", {}).items()}
        texts |= {name: self.metadata[name] for name in ("precision",) if name in self.metadata}
        parameters = {name: {"string_value": text} for name, text in texts.items()}
        config = {"max_batch_size": ROWS, **({"parameters": parameters} if parameters else {})}
        documents: dict[str, Any] = {"/v2/health/ready": {}}
        for own in (model, f"{model}/versions/1.0"):
            documents |= {own: described, f"{own}/ready": {}, f"{own}/config": config}
        if path not in documents:
            raise _Refused(404, "", "Request for unknown model: it is not found")
        return documents[path]

    def _take_unready(self) -> None:
        if self.unready:
            self.unready -= 1
            is_gateway = self.role == "gateway"
            raise _Refused(503, "" if is_gateway else "ServiceUnavailableException", "no worker yet")

    def _of_model(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any, bytes]:
        self._take_unready()
        model, _, version = path.removeprefix("/predictions/").partition("/")
        if model != MODEL:
            raise _Refused(404, "ModelNotFoundException", f"Model not found: {model}")
        if version not in ("", "1.0"):
            raise _Refused(404, "ModelVersionNotFoundException", f"Model version: {version} does not exist")
        # A gateway takes the header out.
        if "X-Model-Metadata" in headers and self.role == "torchserve":
            return 200, self.metadata, b""
        if not body:
            raise _Refused(400, "MalformedJson", "The body is empty.")
        return self._infer(headers, body)

    def _infer(self, headers: Mapping[str, str], body: bytes) -> tuple[int, Any, bytes]:
        size = int(headers[LENGTH])
        document, data = json.loads(body[:size]), body[size:]
        (tensor,) = document["inputs"]
        (rows, *_) = tensor["shape"]
        self.rows.append(rows)
        self.parameters.append(document.get("parameters", {}))
        self.datatypes.append(tensor["datatype"])
        time.sleep(self.delay_s)
        if rows > ROWS:
            words = f"The request has {rows} rows; batch-size must be <= {ROWS} for '{MODEL}'."
            raise _Refused(400, "BatchTooLarge", words)
        if tensor["name"] != "INPUT_1":
            raise _Refused(400, "UnknownShape", f"{tensor['name']}: this model has INPUT_1.")
        outputs = [{**tensor, "name": "OUTPUT_1"}]
        if tensor["datatype"] == "INT32" and (np.frombuffer(data, "<i4") < 0).any():
            failed = np.frombuffer(data, "<i4").reshape(rows, -1).min(axis=1) < 0
            error = json.dumps({"code": 500, "type": "WrongOutput", "message": "it is negative"})
            errors = [error if each else "" for each in failed]
            outputs.append({"name": "error", "datatype": "BYTES", "shape": [rows], "data": errors})
        return 200, {"model_name": MODEL, "outputs": outputs}, data


class _Refused(Exception):
    """An answer that is an error, in the words of TorchServe, or in the gateway's where it has no type."""

    def __init__(self, status: int, type_: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        own = {"code": status, "type": type_, "message": message}
        self.document: dict[str, Any] = own if type_ else {"error": message}


@contextmanager
def serving(server: TensorServer, port: int = 0) -> Iterator[TensorServer]:
    """Serve until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Answer a request without a body."""
            self._answer(b"")

        def do_POST(self) -> None:
            """Answer a request with one."""
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, content: bytes) -> None:
            status, document, binary = server.answer(self.command, self.path, dict(self.headers), content)
            body = json.dumps(document).encode()
            self.send_response(status)
            if binary:
                self.send_header(LENGTH, str(len(body)))
            self.send_header("Content-Length", str(len(body + binary)))
            self.end_headers()
            self.wfile.write(body + binary)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    class Listener(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that went away meanwhile is part of a test."""

    with Listener(("127.0.0.1", port), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=[0.01])
        thread.start()
        server.url = f"http://127.0.0.1:{listener.server_port}"
        try:
            yield server
        finally:
            server.released.set()
            listener.shutdown()
            thread.join()
