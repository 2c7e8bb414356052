"""`make serve CONFIG=production`: a server whose configuration names its models, as a user starts and stops it."""

import json
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.checkout import Checkout, checkout
from tests.e2e.conftest import MOBILENET
from tests.photographs import photograph
from tests.waiting import until
from torchserve_client import Client, ManagementError, Rejected
from torchserve_client.cli import main

CALL = re.compile(r'^Try +(curl -H "Authorization: Bearer (.*)" -T \S+ (http://\S+)/predictions/\S+)$', re.MULTILINE)
CONFIG = "config.production.properties"


@pytest.fixture
def site(model_store: Path, tmp_path: Path) -> Iterator[Checkout]:
    with checkout(tmp_path) as made:
        shutil.copy(model_store / f"{MOBILENET}.mar", made.store)
        edit(made, "resnet-152", MOBILENET)
        yield made


def edit(site: Checkout, before: str, after: str) -> None:
    path = site.folder / CONFIG
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))


def test_production_is_proven_ready_called_with_its_key_and_stopped(
    site: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    started = site.run("make serve CONFIG=production")
    assert started.returncode == 0, started.stderr
    assert re.search(rf"^Model +{MOBILENET} 1\.0, .*, workers 1$", started.stdout, re.MULTILINE)
    keys = site.folder / "key_file.json"
    assert keys.stat().st_mode & 0o777 == 0o600
    ((call, key, address),) = CALL.findall(started.stdout)
    assert key == json.loads(keys.read_text())["inference"]["key"]
    assert "espresso" in json.loads(site.run(f"{call} -s --noproxy '*'").stdout)
    # TorchServe's snapshots, in logs/config/, among them.
    for log in (each for each in (site.folder / "logs").rglob("*") if each.is_file()):
        assert log.suffix == ".gz" or key not in log.read_text(errors="replace"), log

    # Without a key no request is answered, and with one no client can register a model.
    with Client(address) as client, pytest.raises(Rejected) as raised:
        client.predict(MOBILENET, photograph("coffee"))
    assert (raised.value.status, raised.value.type) == (400, "InvalidKeyException")
    server = site.server(CONFIG)
    server.authorize()
    # Parts of forms that TorchServe writes into files are its owner's alone.
    assert "Umask:\t0077" in Path(f"/proc/{server.pid()}/status").read_text()
    register = partial(server.management.register, f"{MOBILENET}.mar", initial_workers=1, model_name="another")
    for call in (register, partial(server.management.unregister, MOBILENET)):
        with pytest.raises(ManagementError) as caught:
            call()
        assert caught.value.status == 405
    addresses = ["--url", address, "--management-url", server.settings.management_url]
    assert main([*addresses, "describe"]) == 1
    assert main(["--token-file", str(keys), *addresses, "wait-ready", MOBILENET]) == 0
    out = site.folder / "answers.jsonl"
    predict = [*addresses, "predict", MOBILENET, str(site.folder / "examples" / MOBILENET), "--out", str(out)]
    assert main(predict) == 1
    assert "Token" in capsys.readouterr().err
    main(["--token-file", str(keys), *predict])
    assert "espresso" in out.read_text()

    again = site.run("make serve CONFIG=production")
    # Nothing was started: the summary, and no word of what did not happen.
    assert (again.returncode, again.stdout) == (0, started.stdout), again.stderr
    assert re.search("^Stop +make stop CONFIG=production$", again.stdout, re.MULTILINE)
    other = site.run("make serve || exit 1")
    assert other.returncode == 1
    assert re.search(r"already running with \S+production\.properties \(pid \d+\); run `make stop`", other.stderr)
    edit(site, f'"{MOBILENET}":', f'"{MOBILENET}-2":')
    assert_rejected(site, rf"load_models registered {MOBILENET} 1\.0, and models= has no entry for it")

    assert "TorchServe: stopped" in site.run("make stop CONFIG=production").stdout
    assert not keys.exists()
    assert "TorchServe: not running" in site.run("make stop CONFIG=production").stdout


def break_worker(site: Checkout) -> None:
    """An archive whose configuration no worker takes."""
    path, folder = site.store / f"{MOBILENET}.mar", site.folder / "unpacked"
    shutil.unpack_archive(path, folder, "zip")
    config = folder / "model-config.yaml"
    config.write_text(config.read_text().replace("resize_size", "resize_sise"))
    path.unlink()
    shutil.make_archive(str(path), "zip", folder)
    path.with_name(f"{path.name}.zip").rename(path)


def assert_rejected(site: Checkout, line: str) -> None:
    started = site.run("make serve CONFIG=production")
    assert started.returncode != 0
    # Without make's line, and those of steps that took two seconds or more.
    said = [each for each in started.stderr.splitlines() if each and not re.search(r"^make: | \(\d+ s\)$", each)]
    assert len(said) == 1, started.stderr
    assert re.match(rf"start: .*{line}", said[0])


def test_production_whose_model_does_not_load_fails_with_one_line_and_leaves_nothing(site: Checkout) -> None:
    break_worker(site)
    assert_rejected(site, rf"{MOBILENET}: .*changed: model-config\.yaml")
    until(lambda: not site.processes())
    assert not (site.folder / "key_file.json").exists()
