"""Reads requirements.lock: one block of lines per package, which begins with `name==version`.

    python deploy/lock.py pins requirements.lock torch torchvision   -> torch==2.13.0 ...
    python deploy/lock.py versions requirements.lock                 -> name==version ; marker, a line for each package
    python deploy/lock.py without-torch requirements.lock            -> the lock without torch and its CUDA parts
    python deploy/lock.py beyond requirements.lock whole.lock        -> the packages that only the second lock contains
    python deploy/lock.py within requirements.lock part.lock         -> the second lock, if the first contains all of it

Runs before the environment exists: standard library only.
"""

import re
import sys
from pathlib import Path

# The packages of PyTorch's CUDA build; another build of torch has other parts, or none.
TORCH_PARTS = re.compile(r"(torch|torchvision|triton|nvidia-.*|cuda-.*)")
FIRST_LINE = re.compile(r"(?P<pin>(?P<name>[A-Za-z0-9._-]+)==[^\s;]+)")


def blocks(text: str) -> dict[str, list[str]]:
    """Split a lock into "name==version" -> lines; a package with several markers has a key for each."""
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        if match := FIRST_LINE.match(line):
            lines = found.setdefault(match["pin"], [])
        if lines is not None:
            lines.append(line)
    return found


def pins(text: str, names: list[str]) -> list[str]:
    """Return `name==version` for each name; a KeyError names a missing package."""
    by_name = {pin.split("==")[0]: pin for pin in blocks(text)}
    return [by_name[name] for name in names]


def versions(text: str) -> str:
    """The first line of each package, with its marker and without hashes: constraints for other packages."""
    return "\n".join(lines[0].removesuffix("\\").strip() for lines in blocks(text).values()) + "\n"


def without_torch(text: str) -> str:
    """Remove torch, torchvision and the packages that only PyTorch's CUDA build needs."""
    kept = [lines for pin, lines in blocks(text).items() if not TORCH_PARTS.fullmatch(pin.split("==")[0])]
    return "\n".join(line for lines in kept for line in lines) + "\n"


def beyond(base: str, whole: str) -> str:
    """Return the packages that only `whole` contains, below its first comment."""
    head = [line for line in whole.splitlines() if line.startswith("#")]
    versions: dict[str, set[str]] = {}
    for pin in blocks(base):
        name, _, version = pin.partition("==")
        versions.setdefault(name, set()).add(version)
    kept = []
    for pin, lines in blocks(whole).items():
        name, _, version = pin.partition("==")
        if name not in versions:
            kept += lines
        elif version not in versions[name]:
            raise ValueError(f"{name}: the second lock has {version}, the first {', '.join(sorted(versions[name]))}")
    return "\n".join([*head, *kept]) + "\n"


def within(base: str, part: str) -> str:
    """Return `part`; a ValueError names its pins that `base` lacks."""
    if lacking := sorted(blocks(part).keys() - blocks(base).keys()):
        raise ValueError(f"the first lock lacks {', '.join(lacking)}")
    return part


def main(arguments: list[str]) -> int:
    command, path, *others = arguments
    text = Path(path).read_text(encoding="utf-8")
    match command:
        case "pins":
            print("\n".join(pins(text, others)))
        case "versions":
            print(versions(text), end="")
        case "beyond" | "within":
            compare = beyond if command == "beyond" else within
            print(compare(text, Path(others[0]).read_text(encoding="utf-8")), end="")
        case _:
            print(without_torch(text))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
