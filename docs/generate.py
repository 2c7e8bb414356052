"""Write the reference pages that the code's own data determines: python -m docs.generate [--check | --site FOLDER]

commands.md, client-commands.md in FOLDER: every command with its options, from its argparse parser; not in git
settings.md, errors.md, model-families.md, results.md, tasks/*.md: the blocks between markers
    <!-- fields: module:Class [module:Base ...] -->   the fields that Class adds to its bases or changes
    <!-- statuses: HTTP -->                           gRPC's code of each status of HTTP
    <!-- families: NAME -->                           a table of docs/model-families.json, which the sweep writes
    <!-- results: bench -->                           the table of docs/results.json, which `make bench` measures
    <!-- medians: PART -->                            the medians of another part of it, one column for each server
    <!-- end -->
"""

import argparse
import functools
import importlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
from pydantic import TypeAdapter

from docs.api import write_api
from handlers.protocol.statuses import STATUSES, meaning_of

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
# A field that changes only the default has the meaning that it has here.
EVERY_TASK = "handlers.config:HandlerConfig"
# The most characters of a default; that of a section is `{}`.
LONGEST_DEFAULT = 40
# The fewest arguments that have a separate list if several subcommands share them.
LEAST_SHARED = 3
# Page of the site -> its title, and modules whose `main` parses arguments. load.bench is missing: it imports peers.
COMMANDS = {
    "commands.md": (
        "Commands of the server",
        tuple(f"deploy.{name}.__main__" for name in ("archives", "nodes.run", "hosts.serve", "gateway", "hosts.ray")),
    ),
    "client-commands.md": (
        "Commands of the client and the load generator",
        ("torchserve_client.cli", "load.__main__"),
    ),
}
# The pages of docs/reference with blocks between markers, beside those of the tasks.
FILLED = ("errors.md", "settings.md", "results.md")
# Pages whose blocks are filled only on the site.
FILLED_ON_SITE = ("model-families.md",)


class ParserFound(Exception):
    """Carries the parser that a command was about to use."""


def find_parser(module: str) -> argparse.ArgumentParser:
    """Return the parser that a command's main uses, without running the command."""

    def stop(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise ParserFound(parser)

    parse = functools.partial(patch.object, argparse.ArgumentParser, new=stop)
    with parse("parse_args"), parse("parse_intermixed_args"):
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


def describe_option(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return an option's line: its form, then its help with the default."""
    formatter = parser._get_formatter()
    form = formatter._format_action_invocation(action)
    words = formatter._expand_help(action) if action.help else ""
    return f"- `{' '.join(form.split())}`: {' '.join(words.split()).replace(str(ROOT) + '/', '').replace('<', '&lt;')}"


def describe_command(parser: argparse.ArgumentParser) -> list[str]:
    """Return a parser's description; a preformatted one stays as it is."""
    words = (parser.description or "").strip()
    first, _, rest = words.partition("\n")
    return [first, "", "```text", rest.strip("\n"), "```"] if rest.strip() else [first]


def list_options(parser: argparse.ArgumentParser) -> list[str]:
    """Return the lines of a parser's arguments."""
    hidden = (argparse._HelpAction, argparse._SubParsersAction, argparse._VersionAction)
    return [
        describe_option(parser, action)
        for action in parser._actions
        if not isinstance(action, hidden) and action.help != argparse.SUPPRESS
    ]


def group_rows(rows: Mapping[str, Sequence[str]]) -> dict[tuple[str, ...], list[str]]:
    """Return the lines that several subcommands share, by those subcommands; a small group stays with each of them."""
    owners: dict[str, list[str]] = {}
    for name, listed in rows.items():
        for row in listed:
            owners.setdefault(row, []).append(name)
    groups: dict[tuple[str, ...], list[str]] = {}
    for row, names in owners.items():
        groups.setdefault(tuple(names), []).append(row)
    return {names: shared for names, shared in groups.items() if len(names) > 1 and len(shared) >= LEAST_SHARED}


def write_commands(title: str, modules: Sequence[str]) -> str:
    """Return the page of all commands; arguments that several subcommands share are printed once."""
    lines = [f"# {title}", ""]
    for module in modules:
        command, *subcommands = list_parsers(find_parser(module))
        lines += [f"## {command.prog}", "", *describe_command(command), ""]
        lines += [*options, ""] if (options := list_options(command)) else []
        rows = {each.prog.rpartition(" ")[2]: list_options(each) for each in subcommands}
        groups = group_rows(rows)
        titles = {names: f"Shared by {', '.join(names[:-1])} and {names[-1]}" for names in groups}
        for names, shared in groups.items():
            lines += [f"### {titles[names]}", "", *shared, ""]
        for name, each in zip(rows, subcommands, strict=True):
            lines += [f"### {each.prog}", "", *describe_command(each)]
            own = [row for row in rows[name] if not any(row in shared for shared in groups.values())]
            lines += ["", *own, *([""] if own else [])]
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
    kind = {"string": "text", "boolean": "boolean", "array": "list", "object": "mapping", "null": "`null`"}
    low, above, high = (schema.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
    words = kind.get(schema.get("type", "object"), "integer" if schema.get("type") == "integer" else "number")
    words += f" from {low}" if low is not None else f" above {above}" if above is not None else ""
    return words + (f" to {high}" if high is not None else "")


def list_fields(cls: str) -> dict[str, dict[str, Any]]:
    """Return a class's fields like read_fields; {} if the class does not exist."""
    module, _, name = cls.partition(":")
    return read_fields(cls) if hasattr(importlib.import_module(module), name) else {}


def write_default(schema: dict[str, Any]) -> str:
    """Return a field's default."""
    default = json.dumps(schema.get("default", {}), ensure_ascii=False).strip('"')
    return f"`{default if len(default) <= LONGEST_DEFAULT else '{}'}`"


def write_fields(cls: str, *bases: str) -> str:
    """Return the list of a class's fields, without those that its bases have unchanged.

    Settings that change only a default, or that have the meaning of the option of their name, share a line at the end.
    """
    inherited = {name: schema for base in reversed(bases) for name, schema in read_fields(base).items()}
    # The default of an option is the setting of that name, or the model's.
    is_setting = not cls.endswith("Options")
    options = list_fields(f"{cls.removesuffix('Config')}Options") if is_setting else {}
    lines = []
    changed: dict[str, list[str]] = {"Defaults of options": [], "Other defaults": []}
    for name, schema in read_fields(cls).items():
        known = inherited.get(name)
        if known == schema:
            continue
        values = list_values(schema).replace(", `null`", "")
        own = schema.get("description")
        if is_setting and not own and (name in options or known):
            changed["Defaults of options" if name in options else "Other defaults"].append(
                f"`{name}` {write_default(schema)}"
            )
            continue
        meaning = re.sub(r"\bNone\b", "null", own or read_fields(EVERY_TASK).get(name, {}).get("description", ""))
        default = f"; default {write_default(schema)}" if is_setting else ""
        lines.append(f"- `{name}` ({values}{default}): {meaning}")
    below = [f"{title}: {', '.join(named)}." for title, named in changed.items() if named]
    return "\n\n".join([*(["\n".join(lines)] if lines else []), *below])


def write_families(name: str) -> str:
    """Return a table of docs/model-families.json: the families of each result, with their largest error."""
    table = json.loads((ROOT / "docs" / "model-families.json").read_text(encoding="utf-8"))[name]
    groups: dict[tuple[str, ...], list[str]] = {}
    errors: dict[tuple[tuple[str, ...], int], float] = {}
    for row, cells in table["rows"].items():
        parts = [ERROR.fullmatch(cell) for cell in cells]
        result = tuple(part[1] if part else cell for part, cell in zip(parts, cells, strict=True))
        groups.setdefault(result, []).append(row)
        for column, part in enumerate(parts):
            if part:
                errors[result, column] = max(errors.get((result, column), 0), float(part[2]))
    family, *columns = table["columns"]
    lines = [f"| {' | '.join([*columns, family])} |", f"|{'---|' * (len(columns) + 1)}"]
    for result, rows in groups.items():
        cells = [
            f"{each}, at most {errors[result, i]:.0e}" if (result, i) in errors else each
            for i, each in enumerate(result)
        ]
        lines.append(f"| {' | '.join(cells)} | {', '.join(rows)} |")
    return "\n".join(lines)


def read_results(part: str) -> list[dict[str, Any]]:
    """Return the tables of docs/results.json that a part of `make bench` measured, one for each processor."""
    tables = json.loads((ROOT / "docs" / "results.json").read_text(encoding="utf-8"))
    return [
        table | {"rows": [row for row in table["rows"] if row.get("page", True)]}
        for table in tables
        if table["part"] == part
    ]


def write_figure(figures: Mapping[str, float]) -> str:
    """Return a median with three digits; "-" for infinity, null in JSON."""
    if not figures:
        return ""
    return "-" if figures["median"] is None else f"{float(format(figures['median'], '.3g')):g}"


def _baseline(row: Mapping[str, Any]) -> str:
    # int8 is compared with the precision that the archive has without it.
    return "fp32 or bf16" if row["measured"].startswith("int8") else str(row["against"])


def write_results(part: str) -> str:
    """Return a part's table, with columns for each processor: both medians, and the ratio of each round."""
    tables = read_results(part)
    head = [f"{table['name']}, ours:theirs | by round" for table in tables]
    lines = [f"| measured, against | {' | '.join(head)} |", f"|{'---|' * (1 + 2 * len(tables))}"]
    found = [{(row["measured"], _baseline(row)): row for row in table["rows"]} for table in tables]
    for what, against in dict.fromkeys(key for rows in found for key in rows):
        cells = [f"{what}, against {against}"]
        for row in (rows.get((what, against)) for rows in found):
            if row is None:
                cells += ["", ""]
                continue
            middle, least, most = (f"{row['ratio'][key]:.2f}" for key in ("median", "min", "max"))
            cells += [f"{write_figure(row['ours'])}:{write_figure(row['theirs'])}".strip(":")]
            cells += [middle if least == most else f"{middle} ({least}..{most})"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_medians(words: str) -> str:
    """Return a part's medians: a column for each server, a row for each quantity, a figure for each number of clients.

    `words` are the part and our name in it.
    """
    part, ours = words.split(maxsplit=1)
    (table,) = read_results(part)
    servers = list(dict.fromkeys([ours, *(row["against"] for row in table["rows"])]))
    rows: dict[str, dict[str, dict[str, str]]] = {}
    for row in table["rows"]:
        load = re.search(r", (\d+) clients?", row["measured"])
        quantity = (row["measured"].replace(load[0], "") if load else row["measured"]).replace(", /s", ", requests/s")
        cells = rows.setdefault(quantity, {name: {} for name in servers})
        for name, key in ((ours, "ours"), (row["against"], "theirs")):
            cells[name][load[1] if load else ""] = write_figure(row[key])
    lines = [f"| | {' | '.join(servers)} |", f"|{'---|' * (1 + len(servers))}"]
    for quantity, cells in rows.items():
        loads = "; ".join(filter(None, next(iter(cells.values()))))
        title = f"{quantity}, {loads} client{'s' if ';' in loads else ''}" if loads else quantity
        lines.append(f"| {title} | {' | '.join('; '.join(cells[name].values()) for name in servers)} |")
    return "\n".join(lines)


def write_statuses(_: str) -> str:
    """Return the statuses of HTTP, by the gRPC code of each."""
    names = {code.value[0]: code.name for code in grpc.StatusCode}
    codes = {status: meaning_of(status).grpc for status in sorted({400, 415, 422, *STATUSES})}
    lines = ["| gRPC | HTTP |", "|---|---|"]
    for code in sorted({*codes.values()}):
        own = ", ".join(str(status) for status in codes if codes[status] == code)
        lines.append(f"| {code} {names[code]} | {own} |")
    return "\n".join(lines)


WRITERS = {
    "fields": lambda words: write_fields(*words.split()),
    "statuses": write_statuses,
    "families": write_families,
    "results": write_results,
    "medians": write_medians,
}
BLOCK = re.compile(r"(<!-- (fields|statuses|families|results|medians): ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
# A cell of docs/model-families.json: the engine and the padding, then the largest error.
ERROR = re.compile(r"(.+), (\de-\d+|0e\+00)")


def fill_page(path: Path) -> str:
    """Return a page with its blocks written again."""

    def fill(block: re.Match[str]) -> str:
        return f"{block[1]}\n{WRITERS[block[2]](block[3])}\n\n{block[4]}"

    return BLOCK.sub(fill, path.read_text(encoding="utf-8"))


def write_pages() -> Iterator[tuple[Path, str]]:
    """Yield every page with generated blocks, with its text."""
    for path in (*map(REFERENCE.joinpath, FILLED), *sorted((REFERENCE / "tasks").glob("*.md"))):
        yield path, fill_page(path)


def complete_links(pages: Path) -> None:
    """Copy the files of the repository that pages link to; a badge of GitHub leads nowhere on the site."""
    for page in pages.rglob("*.md"):
        text = re.sub(r"^.*\]\(\.\./\.\./actions/.*\n", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        page.write_text(text, encoding="utf-8")
        for link in re.findall(r"\]\(([\w./-]+)", text):
            file = Path(os.path.normpath(page.parent / link)).relative_to(pages)
            if (ROOT / file).is_file() and not (pages / file).exists():
                (pages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, pages / file)


def main() -> int:
    """Write each page; with --check, return 1 if a page is stale."""
    parser = argparse.ArgumentParser(description="Write the generated pages of docs/reference.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    parser.add_argument("--site", type=Path, metavar="FOLDER", help="write only the pages of the site, into FOLDER")
    options = parser.parse_args()
    if options.site:
        for name, (title, modules) in COMMANDS.items():
            (options.site / name).write_text(write_commands(title, modules), encoding="utf-8")
        for name in FILLED_ON_SITE:
            (options.site / name).write_text(fill_page(REFERENCE / name), encoding="utf-8")
        (options.site / "task-api.md").write_text(write_api(), encoding="utf-8")
        complete_links(options.site.parents[1])
        return 0
    is_check = options.check
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
