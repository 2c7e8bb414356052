"""NAME-VERSION.mar, and NAME.mar, which leads to the newest; archives of another version of the handlers."""

import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from deploy.archives import __main__ as program
from deploy.archives.names import prune
from deploy.models import ROOT
from tests.deploy.archives.conftest import ArchiveSh
from torchserve_client.archives import describe, find_version

pytestmark = pytest.mark.builds
MAR = ("colours", "--archive-format", "zip-store")


@pytest.fixture
def archives(archive_sh: ArchiveSh) -> ArchiveSh:
    shutil.copytree(ROOT / "examples" / "custom-task", archive_sh.folder, dirs_exist_ok=True)
    return archive_sh


def set_version(archives: ArchiveSh, old: str, new: str) -> None:
    archives.models.write_text(archives.models.read_text().replace(f'version: "{old}"', f'version: "{new}"'))


def test_name_leads_to_the_newest_and_the_way_back_needs_no_build(archives: ArchiveSh) -> None:
    archives(*MAR)
    set_version(archives, "1.0", "2.0")
    archives(*MAR)
    newest = archives.store / "colours.mar"
    assert sorted(path.name for path in archives.store.glob("*.mar")) == [
        "colours-1.0.mar", "colours-2.0.mar", "colours.mar",
    ]  # fmt: skip
    assert (describe(newest).version, describe(find_version(newest, "1.0")).version) == ("2.0", "1.0")
    set_version(archives, "2.0", "1.0")
    assert archives(*MAR) == [f"{os.path.relpath(newest)}: up to date"]
    assert describe(newest).version == "1.0"
    # A served version, and the one that NAME.mar leads to, stay.
    os.utime(archives.store / "colours-1.0.mar")
    snapshot = archives.folder / ".nodes" / "node-1" / "logs" / "config" / "1.cfg"
    snapshot.parent.mkdir(parents=True)
    snapshot.write_text(r'model_snapshot={"models"\: {"colours"\: {"2.0"\: {"marName"\: "colours.mar"}}}}')
    assert prune(newest, 1, archives.folder) == []
    snapshot.unlink()
    assert [path.name for path in prune(newest, 1, archives.folder)] == ["colours-2.0.mar"]


def test_archive_of_another_model_is_not_overwritten(archives: ArchiveSh) -> None:
    archives(*MAR)
    text = archives.models.read_text()
    archives.models.write_text(text.replace("colours:", "colours-1.0:"))
    shutil.copytree(archives.folder / "colours", archives.folder / "colours-1.0")
    words = "colours-1.0: colours-1.0.mar is an archive of colours: rename one of the models"
    assert archives.refused("colours-1.0", *MAR[1:]) == words


def test_check_lists_archives_with_other_handlers(archives: ArchiveSh, capfd: pytest.CaptureFixture[str]) -> None:
    archives(*MAR)
    check = ["--check", "--export-path", str(archives.store)]
    capfd.readouterr()
    assert (program.main(check), capfd.readouterr().out) == (0, "")
    path = archives.store / "colours-1.0.mar"
    with zipfile.ZipFile(path) as whole:
        content = {name: whole.read(name) for name in whole.namelist()}
    build = json.loads(content["build.json"])
    # Of the first format, which has neither.
    del build["sum"], build["format"], build["made_with"]
    build["files"]["handlers/base.py"] = "0" * 64
    content["build.json"] = json.dumps(build).encode()
    with zipfile.ZipFile(path, "w") as changed:
        for name, data in content.items():
            changed.writestr(name, data)
    assert program.main(check) == 1
    (line,) = capfd.readouterr().out.splitlines()
    assert "built with an older version, installed is" in line and "1 modules differ: handlers/base.py" in line


def test_entries_are_all_checked_before_the_first_is_built(archives: ArchiveSh) -> None:
    text = archives.models.read_text()
    archives.models.write_text(f"{text}wrong:\n  task: colour_names.py\n  version: '1'\n")
    (archives.folder / "wrong").mkdir()
    (archives.folder / "wrong" / "model-config.yaml").write_text("handler: {max_batch_itmes: 3}\n")
    shutil.copy(archives.folder / "colours" / "palette.csv", archives.folder / "wrong")
    assert "wrong: handler: max_batch_itmes: unknown name" in archives.refused("--all")
    assert not list(Path(archives.store).glob("colours*"))
