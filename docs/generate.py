"""Write the reference pages that the code's own data determines: python -m docs.generate [--check]

commands.md, client-commands.md: every command with its options, from its argparse parser
settings.md, tasks/*.md: the blocks between markers, from the settings and options classes:
    <!-- fields: module:Class [module:Base] -->   the fields that Class adds to Base or changes
    <!-- end -->
"""

import argparse
import functools
import importlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pydantic import TypeAdapter

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
NOTE = "<!-- Written by docs/generate.py. Change the code, then run `make docs`. -->\n"
# A field that changes only the default has the meaning that it has here.
EVERY_TASK = "handlers.config:HandlerConfig"
# The most characters of a default; that of a section is `{}`.
LONGEST_DEFAULT = 40
# Each module has a `main` that parses its arguments. load.bench is missing: it imports torch and every peer.
COMMANDS = (
    "deploy.build.__main__",
    "deploy.run.__main__",
    "deploy.gateway.__main__",
    "deploy.container.__main__",
    "deploy.ray.__main__",
)
CLIENT_COMMANDS = ("torchserve_client.cli", "load.__main__")


class ParserFound(Exception):
    """Carries the parser that a command was about to use."""


def find_parser(module: str) -> argparse.ArgumentParser:
    """Return the parser that a command's main uses, without running the command."""

    def stop(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise ParserFound(parser)

    with patch.object(argparse.ArgumentParser, "parse_args", stop):
        try:
            importlib.import_module(module).main([])
        except ParserFound as found:
            parser: argparse.ArgumentParser = found.args[0]
            return parser
    raise SystemExit(f"generate: {module}.main does not parse its arguments with argparse")


def list_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and its subcommands' parsers, each once."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                yield from list_parsers(child)


def write_cell(text: str) -> str:
    """Return text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def describe_option(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return an option's row: its form, then its help with the default."""
    formatter = parser._get_formatter()
    form = formatter._format_action_invocation(action)
    words = formatter._expand_help(action) if action.help else ""
    return f"| `{write_cell(form)}` | {write_cell(words.replace(str(ROOT) + '/', ''))} |"


def describe_command(parser: argparse.ArgumentParser) -> list[str]:
    """Return a parser's description; a preformatted one stays as it is."""
    words = (parser.description or "").strip()
    first, _, rest = words.partition("\n")
    return [first, "", "```text", rest.strip("\n"), "```"] if rest.strip() else [first]


def write_commands(title: str, modules: Sequence[str]) -> str:
    """Return the page of all commands."""
    lines = [NOTE, f"# {title}", ""]
    for module in modules:
        for parser in list_parsers(find_parser(module)):
            level = "##" if " " not in parser.prog.replace("python -m ", "") else "###"
            lines += [f"{level} {parser.prog}", "", *describe_command(parser), ""]
            options = [
                describe_option(parser, action)
                for action in parser._actions
                if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
                and action.help != argparse.SUPPRESS
            ]
            if options:
                lines += ["| argument | meaning |", "|---|---|", *options, ""]
    return "\n".join(lines)


@functools.cache
def read_fields(name: str) -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of a class's fields, by name; the class is module:Class."""
    module, _, cls = name.partition(":")
    properties: dict[str, dict[str, Any]] = TypeAdapter(getattr(importlib.import_module(module), cls)).json_schema()[
        "properties"
    ]
    return properties


def list_values(schema: dict[str, Any]) -> str:
    """Return the values that a field accepts."""
    if "anyOf" in schema:
        return ", ".join(dict.fromkeys(filter(None, (list_values(each) for each in schema["anyOf"]))))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
    kind = {"string": "text", "boolean": "`true`, `false`", "array": "list", "object": "mapping", "null": "`null`"}
    low, above, high = (schema.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
    words = kind.get(schema.get("type", "object"), "whole number" if schema.get("type") == "integer" else "number")
    words += f" from {low}" if low is not None else f" above {above}" if above is not None else ""
    return words + (f" to {high}" if high is not None else "")


def write_fields(cls: str, base: str = "") -> str:
    """Return the table of a class's fields, without those that its base has unchanged."""
    inherited = read_fields(base) if base else {}
    # The default of an option is the setting of that name, or the model's.
    is_setting = not cls.endswith("Options")
    rows = ["| setting | default | values | meaning |", "|---|---|---|---|"] if is_setting else []
    rows = rows or ["| option | values | meaning |", "|---|---|---|"]
    for name, schema in read_fields(cls).items():
        known = inherited.get(name)
        if known != schema:
            default = json.dumps(schema.get("default", {}), ensure_ascii=False).strip('"')
            default = f" `{default if len(default) <= LONGEST_DEFAULT else '{}'}` |" if is_setting else ""
            meaning = schema.get("description") or read_fields(EVERY_TASK).get(name, {}).get("description", "")
            values = list_values(schema).replace(", `null`", "")
            meaning = re.sub(r"\bNone\b", "null", meaning)
            rows.append(f"| `{name}` |{default} {write_cell(values)} | {write_cell(meaning)} |")
    return "\n".join(rows)


BLOCK = re.compile(r"(<!-- fields: (\S+)(?: (\S+))? -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_page(path: Path) -> str:
    """Return a page with its blocks written again."""

    def fill(block: re.Match[str]) -> str:
        return f"{block[1]}\n{write_fields(block[2], block[3] or '')}\n\n{block[4]}"

    return BLOCK.sub(fill, path.read_text(encoding="utf-8"))


def write_pages() -> Iterator[tuple[Path, str]]:
    """Yield every generated page with its text."""
    yield REFERENCE / "commands.md", write_commands("Commands of the server", COMMANDS)
    yield (
        REFERENCE / "client-commands.md",
        write_commands("Commands of the client and the load generator", CLIENT_COMMANDS),
    )
    for path in (REFERENCE / "settings.md", *sorted((REFERENCE / "tasks").glob("*.md"))):
        yield path, fill_page(path)


def main() -> int:
    """Write each page; with --check, return 1 if a page is stale."""
    parser = argparse.ArgumentParser(description="Write the generated pages of docs/reference.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    is_check = parser.parse_args().check
    stale = []
    for path, text in write_pages():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if not is_check:
                path.write_text(text, encoding="utf-8")
    if is_check and stale:
        sys.stderr.write(f"generate: stale: {', '.join(stale)}; run `make docs`\n")
    return int(is_check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
