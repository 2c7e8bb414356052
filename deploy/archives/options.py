"""The options of `archive` with which a model was built last, for a later build by `serve` or `start`.

archive -> build.json: paths below the folder of the state, and of others only their names, since an archive ships
        -> .nodes/.options/NAME.json: other paths, too, and the archive's fingerprint
serve   -> the record if it is of this archive, or else build.json -> options, or the one that cannot be followed here
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from deploy.archives.fingerprint import read_build
from deploy.places import ARCHIVE, HOME, STORE
from torchserve_client.files import replacing

# The options that are kept; those of PATHS name a file or folder.
REMEMBERED = ("weights", "engine", "precision", "calibrate", "validate", "min_agreement", "min_chrf")
OPTIONS = tuple(f"--{name.replace('_', '-')}" for name in REMEMBERED)
PATHS = ("--weights", "--calibrate", "--validate")
RECORDS = HOME / ".nodes" / ".options"  # beside logs and keys, and not in the store, which is copied


def name_place(option: str, value: str) -> str:
    """Return an option's value from any folder: a path below HOME from there, which moves with it, or absolute."""
    if option not in PATHS or value == "random" or not Path(value).exists():
        return value
    path = Path(value).resolve()
    return f"./{path.relative_to(HOME)}" if path.is_relative_to(HOME) else str(path)


def hide_places(words: Sequence[str]) -> list[str]:
    """Return options without the folders of this machine, for build.json."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return [
        word
        for option, value in pairs
        for word in (option, f"/{Path(value).name}" if option in PATHS and Path(value).is_absolute() else value)
    ]


def keep(archive: Path, fingerprint: str, words: Sequence[str]) -> None:
    """Keep the options of an archive of the store; in a folder that this user cannot write to, build.json's hold."""
    if archive.parent.resolve() != STORE.resolve():
        return  # of no archive that `recall` asks for
    record = RECORDS / f"{archive.stem}.json"
    text = json.dumps({"fingerprint": fingerprint, "options": [*words]})
    with suppress(OSError):
        if record.is_file() and record.read_text(encoding="utf-8") == text:
            return
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(record) as new:
            new.touch(0o600, exist_ok=False)  # for its owner only
            new.write_text(text, encoding="utf-8")


def recall(name: str) -> tuple[list[str], str]:
    """Return the options of a model's last build, or none and the one that this machine lacks; print them."""
    if (build := read_build(STORE / f"{name}.mar")) is None:
        return [], ""
    words, is_record = build.options, False
    with suppress(OSError, ValueError, TypeError, KeyError):
        record = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
        if record["fingerprint"] == build.fingerprint:
            words, is_record = record["options"], True
    found: list[str] = []
    for option, value in zip(map(str, words[::2]), map(str, words[1::2]), strict=False):
        # An archive may be a stranger's. A Hugging Face id is neither absolute nor begins with a point.
        is_path = option in PATHS and value.startswith(("/", "./"))
        if option not in OPTIONS or (is_path and not (is_record or value.startswith("./"))):
            return [], f"{option} {value.removeprefix('/')}"
        if is_path and not (HOME / value).exists():
            return [], f"{option} {value}"
        found += [option, str(HOME / value) if is_path else value]
    if found:
        print(f"{name}: built with {' '.join(found)}, as its archive; {ARCHIVE} {name} builds it without", flush=True)
    return found, ""
