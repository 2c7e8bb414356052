"""`torchserve-batching ray config models.yaml > serve.yaml`: a configuration for `serve run` and `serve deploy`."""

import sys
from pathlib import Path
from shlex import quote

import yaml

from deploy.command import CommandParser, run_command
from deploy.hosts.ray.settings import read
from deploy.places import ROOT
from handlers.errors import InvalidConfig


def main(arguments: list[str]) -> int:
    parser = CommandParser(
        prog="torchserve-batching ray",
        description="Configure Ray Serve for archives.",
        examples=["torchserve-batching ray config models.yaml > serve.yaml", 'eval "$(torchserve-batching ray env)"'],
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = "print the configuration of an application for each archive"
    config = commands.add_parser("config", help=about, description=f"{about}, for `serve run` and `serve deploy`")
    config.add_argument("models", type=Path, help="file of settings (docs/how-to/ray-serve.md)")
    about = "print the variables that every process of the cluster needs"
    commands.add_parser("env", help=about, description=about, examples=['eval "$(torchserve-batching ray env)"'])
    options = parser.parse_args(arguments)

    def write() -> None:
        is_config = options.command == "config"
        print(yaml.safe_dump(read(options.models), sort_keys=False) if is_config else write_variables(), end="")

    return run_command("ray", write, InvalidConfig, OSError)


def write_variables() -> str:
    """Return ray.env and this installation's paths as lines for a shell."""
    folder = Path(__file__).parent
    lines = [line for line in (folder / "ray.env").read_text().splitlines() if not line.startswith("#")]
    lines.append(f"RAY_SERVE_HAPROXY_BINARY_PATH={quote(str(folder / 'haproxy.sh'))}")
    lines.append(f"PYTHONPATH={quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}")
    return "".join(f"export {line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
