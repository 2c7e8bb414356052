"""Write the reference pages that the code's own data determines: python -m docs.generate [--check]

commands.md: every command with its options, from its argparse parser
"""

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
NOTE = "<!-- Written by docs/generate.py. Change the code, then run `make docs`. -->\n"
# Each module has a `main` that parses its arguments.
COMMANDS = (
    "deploy.build.__main__",
    "deploy.run.__main__",
    "deploy.gateway.__main__",
    "deploy.container.__main__",
    "torchserve_client.cli",
    "load.__main__",
    "load.bench.__main__",
)


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


def write_commands() -> str:
    """Return the page of all commands."""
    lines = [NOTE, "# Commands", ""]
    for module in COMMANDS:
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


PAGES = {"commands.md": write_commands}


def main() -> int:
    """Write each page; with --check, return 1 if a page is stale."""
    parser = argparse.ArgumentParser(description="Write the generated pages of docs/reference.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    is_check = parser.parse_args().check
    stale = []
    for name, write in PAGES.items():
        path, text = REFERENCE / name, write()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not is_check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if is_check and stale:
        sys.stderr.write(f"generate: stale: {', '.join(stale)}; run `make docs`\n")
    return int(is_check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
