"""The command `torchserve-batching completion bash|zsh`, and the names that it completes."""

import argparse
from collections.abc import Mapping

import yaml

from deploy.command import CommandParser
from deploy.places import OWN_LIST

PROGRAM = "torchserve-batching"


def complete(commands: Mapping[str, str]) -> None:
    """Print the completions of the line in the shell's variables, and end the process; nothing without these."""
    import argcomplete  # noqa: PLC0415

    parser = argparse.ArgumentParser(PROGRAM)
    parser.add_argument("--dir")
    added = parser.add_subparsers()
    for name, words in commands.items():
        # The models of the user's list, of which servers may have others.
        command = added.add_parser(name, help=words)
        command.add_argument("models", nargs="*", choices=_list_models() or None, help="model")
    argcomplete.autocomplete(parser)


def _list_models() -> list[str]:
    try:
        return [str(name) for name in yaml.safe_load(OWN_LIST.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        return []


def main(arguments: list[str]) -> int:
    """Print the script of a shell."""
    import argcomplete  # noqa: PLC0415

    parser = CommandParser(
        prog=f"{PROGRAM} completion",
        description="Print the script that completes commands and models: eval it in the shell's start file.",
        examples=[f'eval "$({PROGRAM} completion bash)"', f'eval "$({PROGRAM} completion zsh)"'],
    )
    parser.add_argument("shell", choices=["bash", "zsh"])
    print(argcomplete.shellcode([PROGRAM], shell=parser.parse_args(arguments).shell))
    return 0
