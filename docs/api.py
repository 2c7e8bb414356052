"""The reference of the task API on the site: signatures and docstrings of the names that a user's task imports."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

# Heading -> the names below it, as module:Name.
NAMES = {
    "Class": ("handlers.base:BatchHandler", "handlers.pipeline.task:Hooks"),
    "Inputs and results": (
        "handlers.pipeline.values:Archive",
        "handlers.pipeline.values:Inputs",
        "handlers.pipeline.values:Results",
    ),
    "Items": ("handlers.protocol.requests:Payload", "handlers.protocol.requests:Cost"),
    "Engines": (
        "handlers.engines:Engine",
        "handlers.engines.torch:TorchEngine",
        "handlers.engines.openvino:OpenVinoEngine",
        "handlers.engines.onnx:OnnxEngine",
        "handlers.engines.function:FunctionEngine",
    ),
    "Helpers": (
        "handlers.vision.images:decode_image",
        "handlers.text.inputs:read_payload",
        "handlers.engines:pad_array",
        "torchserve_batching.testing:",
    ),
}
ERRORS = ("InvalidInput", "OutOfMemory", "OutOfTime", "WrongOutput", "InvalidConfig")
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$", re.MULTILINE)
INTRODUCTION = """# Task API

The names that your own task imports ([how to write one](../tutorials/write-a-task.md)). Arrays are numpy's; B is the
number of items of a micro-batch. The class of your settings gets the [settings of every task](settings.md#every-task).
"""


def write_api() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for heading, names in NAMES.items():
        parts += [f"## {heading}", "", *(part for name in names for part in _describe(name))]
    return "\n".join([*parts, "## Errors", "", *_list_errors()])


def _describe(name: str) -> Iterator[str]:
    module, _, attribute = name.partition(":")
    found = importlib.import_module(module)
    chosen = [attribute] if attribute else [each for each, value in vars(found).items() if _is_own(value, found)]
    for each in chosen:
        value = getattr(found, each)
        yield from (f"### {each}", "", f"`from {module} import {each}`", "")
        yield from (_signature(each, value), "", _text(value), "")
        if inspect.isclass(value) and "__init__" in vars(value) and (text := inspect.getdoc(value.__init__)):
            yield from (text, "")
        for method, member in vars(value).items() if inspect.isclass(value) else ():
            function = getattr(member, "fget", None) or member
            if not method.startswith("_") and inspect.isfunction(function) and function.__doc__:
                yield from (f"#### {each}.{method}", "", _signature(method, function), "", _text(function), "")


def _is_own(value: Any, module: Any) -> bool:
    is_named = inspect.isfunction(value) or inspect.isclass(value)
    return is_named and value.__module__ == module.__name__ and not value.__name__.startswith("_")


def _signature(name: str, value: Any) -> str:
    """Return the fields of a dataclass, or the arguments of a function or a class, as its source has them."""
    (node,) = ast.parse(textwrap.dedent(source := inspect.getsource(value))).body
    if isinstance(node, ast.ClassDef):
        if fields := [each for each in node.body if isinstance(each, ast.AnnAssign) and ast.unparse(each)[0] != "_"]:
            lines = textwrap.dedent(source).splitlines()[fields[0].lineno - 1 : fields[-1].end_lineno]
            return "\n".join(["```python", textwrap.dedent("\n".join(lines)), "```"])
        made = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        return _written(name, made[0]) if made else ""
    return _written(name, node)


def _written(name: str, node: Any) -> str:
    if any(ast.unparse(each) == "property" for each in node.decorator_list):
        return f"```python\n{name}: {ast.unparse(node.returns)}\n```"
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    returns = "" if node.returns is None or name[0].isupper() else f" -> {ast.unparse(node.returns)}"
    return f"```python\n{name}({arguments}){returns}\n```"


def _text(value: Any) -> str:
    """Return a docstring in Markdown: its sections are lists."""
    lines = SECTION.sub(r"**\1**\n", inspect.getdoc(value) or "").splitlines()
    is_code = False
    for number, line in enumerate(lines):
        is_code = (is_code and (not line or line.startswith("    "))) or (line.startswith("    from ") and not is_code)
        if is_code:
            continue
        if entry := re.match(r" {4}(\w+): (.*)", line):
            lines[number] = f"- `{entry[1]}`: {entry[2]}"
        elif re.match(r" {4,}\S", line):
            lines[number] = line.strip()
    return "\n".join(lines)


def _list_errors() -> Iterator[str]:
    errors = importlib.import_module("handlers.errors")
    yield "`from handlers.errors import CorruptInput`; its message is for the client, and never quotes a payload."
    yield ""
    yield from ("| error | status | meaning |", "|---|---|---|")
    invalid = errors.InvalidInput
    for name, value in vars(errors).items():
        if inspect.isclass(value) and (name in ERRORS or issubclass(value, invalid)):
            yield f"| `{name}` | {getattr(value, 'code', '')} | {' '.join((value.__doc__ or '').split())} |"
