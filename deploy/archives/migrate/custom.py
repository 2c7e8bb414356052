"""A handler on TorchServe's BaseHandler, read as text: the draft of a task with its methods, and what hinders batching.

source -> ast -> draft_task -> a task's file, to be completed
              -> find_problems -> lines of advice
"""

import ast
import re
from collections.abc import Iterator
from string import Template
from typing import Any

from deploy.archives.old_archives import OldArchive
from handlers.errors import InvalidConfig

# Methods that the task has itself, under other names.
RENAMED = {"initialize": "initialize_old", "handle": "handle_old"}
# Calls that read files; at import time they look in the folder of the archive.
READING = ("open", "load", "read_text", "read_bytes", "read_csv", "from_pretrained")
ROW_FIELDS = {"data", "body"}  # the fields of a row, which are not a request's own

DRAFT = Template('''"""A draft of `archive --from`. Decide at each place marked BATCHING, then build it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from ts.torch_handler.base_handler import BaseHandler

from handlers.base import BatchHandler
from handlers.config import HandlerConfig
from handlers.engines.function import FunctionEngine

$module

class $name($bases):
    config_class = HandlerConfig
    # BATCHING: the fields of a JSON request that contain its input; other fields are rejected.
    inputs = frozenset($fields)
    staged_files = $staged

    def load(self):
        model = $manifest
        properties = {"model_dir": str(self.archive.model_dir), "gpu_id": self.archive.device.index, "batch_size": 1}
        context = SimpleNamespace(manifest={"model": model}, system_properties=properties, model_yaml_config={})
        $initialize
        return FunctionEngine(self.run, ["data"])

    def sample(self):
        # BATCHING: return a Payload that a client might send, so that no request waits for the first run.
        return None

    def decode(self, payload):
        # BATCHING: one request at a time. Raise handlers.errors.CorruptInput for one that is not valid.
        return self.preprocess([{"body": payload.value}])

    def collate(self, items):
        # BATCHING: stack the items of several requests, (B, ...); pad them if their shapes differ.
        return {"data": np.concatenate([np.asarray(item) for item in items])}

    def run(self, data):
        # BATCHING: one forward pass for all rows. The outputs' first axis is that of the rows.
        return {"output": np.asarray(self.inference($data))}

    def split(self, outputs, items):
        # BATCHING: one result for each item, in order.
        return self.postprocess($output)

    # -- the old handler's ---------------------------------------------------------------------------------------------

$methods
''')


def draft_task(archive: OldArchive, source: str) -> str:
    """Write a task that calls the handler's own preprocess, inference and postprocess for a micro-batch."""
    module, old = _parse(source)
    if old is None:
        raise InvalidConfig("its handler is a function, not a class; add --stock to run it as it is")
    bases = [ast.unparse(base) for base in old.bases]
    others = [base for base in bases if base.rpartition(".")[2] not in ("BaseHandler", "ABC", "object")]
    methods = {node.name for node in old.body if isinstance(node, ast.FunctionDef)}
    preprocess = next((ast.unparse(node) for node in old.body if getattr(node, "name", "") == "preprocess"), "torch")
    is_torch = "torch" in preprocess
    fields = sorted({a or b for a, b in re.findall(r"\['(\w+)'\]|\.get\('(\w+)'", preprocess)} - ROW_FIELDS)
    keys = ("modelName", "serializedFile", "modelFile")
    return DRAFT.substitute(
        module="\n".join(_text(source, node) for node in module.body if _is_kept(node, old)),
        name=old.name,
        bases=", ".join(["BatchHandler[HandlerConfig, Any]", *others]),
        fields=set(fields or ["data"]),
        staged=tuple(each for each in archive.files() if each != archive.manifest["handler"].partition(":")[0]),
        manifest={key: archive.manifest[key] for key in keys if key in archive.manifest},
        initialize="self.initialize_old(context)"
        if "initialize" in methods
        else "BaseHandler.initialize(self, context)",
        data="torch.from_numpy(data)" if is_torch else "data",
        output='torch.from_numpy(outputs["output"])' if is_torch else 'outputs["output"]',
        methods="\n\n".join(_method(source, node) for node in old.body),
    )


def _parse(source: str) -> tuple[ast.Module, ast.ClassDef | None]:
    """Return the module, and its class whose base is a handler, or else its last one."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InvalidConfig(f"the handler is not valid Python: {error}; add --stock to run it as it is") from None
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    handlers = [node for node in classes if any("Handler" in ast.unparse(base) for base in node.bases)]
    return module, next(iter([*handlers, *classes[::-1]]), None)


def _is_kept(node: ast.stmt, old: ast.ClassDef) -> bool:
    """Whether a statement goes into the draft: not the class, TorchServe's entry point or an object for it."""
    if node is old or getattr(node, "name", "") == "handle":
        return False
    return not (isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(f"{old.name}("))


def _text(source: str, node: ast.stmt) -> str:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])
    return "\n".join(source.splitlines()[first - 1 : node.end_lineno])


def _method(source: str, node: ast.stmt) -> str:
    text = _text(source, node)
    for name, new in RENAMED.items():
        text = re.sub(rf"\bdef {name}\(", f"def {new}(", text)
        text = re.sub(rf"\bsuper\([^)]*\)\.{name}\(", f"BaseHandler.{name}(self, ", text)
    return text


def find_problems(archive: OldArchive, source: str) -> tuple[list[str], bool]:
    """List what hinders batching or serving, and whether the handler only answers the first request of a batch."""
    module, old = _parse(source)
    found = [*_file_problems(archive), *_import_problems(module)]
    functions = [node for node in ast.walk(old or module) if isinstance(node, ast.FunctionDef)]
    is_single = False
    for function in functions:
        rows = next((each.arg for each in function.args.args if each.arg not in ("self", "cls")), None)
        if function.name not in ("handle", "preprocess", "inference") or rows is None:
            continue
        text = ast.unparse(function)
        loops: list[Any] = [node for node in ast.walk(function) if rows in _looped(node)]
        slow = [loop for loop in loops if re.search(r"self\.(\w*model\w*|inference)\(", ast.unparse(loop))]
        found += [
            f"{function.name} (line {loop.lineno}) runs the model once for each row: batch it in `run`"
            for loop in slow[:1]
        ]
        if re.search(rf"\b{rows}\[0\]", text) and not loops and function.name != "inference":
            is_single = True
            found.append(
                f"{function.name} (line {function.lineno}) reads only {rows}[0]: batchSize 1, until it is moved"
            )
    if "send_intermediate_predict_response" in source:
        found.append("it streams its answers, which is not served here")
    if old is not None and "handle" in {function.name for function in functions}:
        found.append("it overrides `handle`: a task's decode, collate, run and split take its place")
    if "json.loads" in source or ".decode(" in source:
        found.append(
            "it decodes bodies: `decode_input_request: false` under handler: if your config.properties has that"
        )
    if not is_single and archive.config.get("batchSize", 1) == 1:
        found.append("its batch size was 1, unless its registration said more: requests are batched now")
    return list(dict.fromkeys(found)), is_single


def _looped(node: object) -> str:
    """Return the iterables of a loop or a comprehension; nothing for another node."""
    if isinstance(node, ast.For):
        return ast.unparse(node.iter)
    return " ".join(ast.unparse(each.iter) for each in getattr(node, "generators", ()))


def _file_problems(archive: OldArchive) -> Iterator[str]:
    if path := archive.path("requirementsFile"):
        lines = archive.read_text(path.name).splitlines()
        listed = ", ".join(line.strip() for line in lines if line.strip())[:200]
        yield f"{path.name} ({listed}): not installed with the model: see Packages in docs/how-to/move.md"


def _import_problems(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
            continue
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in READING:
                place = "move it into `load`, with self.archive.model_dir"
                yield f"line {call.lineno} reads a file when it is imported: {place}"
