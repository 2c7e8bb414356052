"""`torchserve-batching ray config models.yaml > serve.yaml`: a configuration for `serve run` and `serve deploy`."""

import sys
from pathlib import Path

import yaml

from deploy.command import CommandParser, run_command
from deploy.ray.settings import read
from handlers.errors import InvalidConfig


def main(arguments: list[str]) -> int:
    parser = CommandParser(
        prog="torchserve-batching ray",
        description="Configure Ray Serve for archives.",
        examples=["torchserve-batching ray config models.yaml > serve.yaml", "serve run serve.yaml"],
    )
    commands = parser.add_subparsers(required=True)
    about = "print the configuration of an application for each archive"
    config = commands.add_parser("config", help=about, description=f"{about}, for `serve run` and `serve deploy`")
    config.add_argument("models", type=Path, help="file of settings (docs/how-to/ray-serve.md)")
    options = parser.parse_args(arguments)

    def write() -> None:
        print(yaml.safe_dump(read(options.models), sort_keys=False), end="")

    return run_command("ray", write, InvalidConfig, OSError)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
