"""Small faults in Python code, for `make mutants`: a file -> its faults, each a replaced part of the text."""

import ast
import difflib
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
OPERATORS: dict[type[ast.AST], str] = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not"},
    **{ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or", ast.Or: "and"},
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"},
}
WORDS = {"min": "max", "max": "min", "any": "all", "all": "any", "True": "False", "False": "True"}


class Mutant(NamedTuple):
    file: str
    lines: tuple[int, int]  # of the statement, or of its head
    kind: str
    start: int
    end: int
    new: str

    def apply(self, source: bytes) -> str:
        """Return the file with the fault, or "" if it is not valid Python or changes nothing."""
        text = (source[: self.start] + self.new.encode() + source[self.end :]).decode()
        with suppress(SyntaxError):
            return text if ast.dump(ast.parse(text)) != ast.dump(ast.parse(source)) else ""
        return ""

    def show(self) -> str:
        source = (ROOT / self.file).read_bytes()
        before, after = source.decode().splitlines(), self.apply(source).splitlines()
        return "\n".join([*difflib.unified_diff(before, after, lineterm="", n=0)][3:])


def _changes(node: Any) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield the faults of a node: the kind, the first and the last node that are replaced, and the new text."""
    text = ast.unparse
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) | ast.BinOp(left=left, op=op, right=right):
            if type(op) in OPERATORS:
                yield "operator", node, node, f"(({text(left)}) {OPERATORS[type(op)]} ({text(right)}))"
        case ast.BoolOp(op=op, values=values):
            words = f" {OPERATORS[type(op)]} ".join(f"({text(each)})" for each in values)
            yield from (("operator", node, node, f"({words})"), ("condition", node, node, f"({text(values[0])})"))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", node, node, f"({text(operand)})"
        case ast.Constant(value=bool()) | ast.Name() if text(node) in WORDS:
            yield "constant", node, node, WORDS[text(node)]
        case ast.Constant(value=int() | float() as value):
            yield "constant", node, node, str(value + 1)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "branches", node, node, f"(({text(orelse)}) if ({text(test)}) else ({text(body)}))"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() if not text(node).startswith("logger."):
            yield "dropped call", node, node, "pass"
        case ast.Return(value=ast.AST() as value) if text(value) != "None":
            yield "return value", node, node, "return None"
        case ast.Try(finalbody=[_, *_]):
            caught = node.handlers or [ast.ExceptHandler(ast.Tuple([], ast.Load()), None, [ast.Pass()])]
            yield "finally", node, node, text(ast.Try(node.body, caught, [*node.orelse, *node.finalbody], []))
        case ast.Call(args=[first, second, *_]) if text(node.func) not in WORDS and text(first) != text(second):
            yield "argument order", first, second, f"{text(second)}, {text(first)}"
        case ast.Call(keywords=[*others, ast.keyword(arg=str())]):
            yield "dropped argument", node, node, text(ast.Call(node.func, node.args, others))


def find_mutants(file: str) -> Iterator[Mutant]:
    """Yield the faults of a file, none of them in annotations and decorators; a few are not valid Python."""
    source = (ROOT / file).read_bytes()
    starts, tree = [0, *(match.end() for match in re.finditer(b"\n", source))], ast.parse(source)
    typed = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
    typed += [each for node in ast.walk(tree) for each in getattr(node, "decorator_list", [])]
    hidden = {id(each) for part in typed if part for each in ast.walk(part)}
    lines = dict[int, tuple[int, int]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            inner = [each.lineno for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
            ends = max(node.lineno, min(inner) - 1) if inner else node.end_lineno or node.lineno
            lines |= {id(each): (node.lineno, ends) for each in ast.walk(node)}  # an inner statement comes later
        for kind, first, last, new in [] if id(node) in hidden else _changes(node):
            start, end = starts[first.lineno - 1] + first.col_offset, starts[last.end_lineno - 1] + last.end_col_offset
            yield Mutant(file, lines[id(node)], kind, start, end, new.replace("\n", "\n" + " " * first.col_offset))
