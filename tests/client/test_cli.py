import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import serving
from tests.tables import table
from torchserve_client.cli import main, parser
from torchserve_client.rollout import Rollout
from torchserve_client.version import VERSION

NO_SERVER = ["--url", "http://127.0.0.1:9", "--management-url", "http://127.0.0.1:9"]
LONG = " ".join(["word"] * 40)
AWAY = "no TorchServe answers at http://127.0.0.1:9 (NoConnection)"


@table(
    ([], "COMMAND"),
    (["fly"], "invalid choice: 'fly'"),
    (["scale", "m", "two"], "'two' is not a whole number of 0 or more"),
    (["register", "m", "--batch-size", "0"], "'0' is not a whole number of 1 or more"),
    (["wait-ready", "m", "--timeout", "nan"], "'nan' is not a duration: write 120, 120s, 500ms or 2m"),
    (["predict", "m", "photos"], "--out"),
    (["predict", "m", "photos", "--out", "o", "--option", "top_k"], "'top_k' is not NAME=VALUE"),
    (["predict", "m", "photos", "--out", "o", "--option", "lang=\udce9"], "lang: the value is not UTF-8"),
    (["--management-url", "http://a:1", "--nodes-file", "n.json", "describe"], "cannot both be set; pass one"),
    (["--client-key", "k.pem", "describe"], "--client-key needs --cert"),
    (["rollout", "m", "--canary", "101"], "'101' is not a number of 0 or more and at most 100"),
    (["rollout", "m", "--canary", "5", "--canary-header", "X-Try"], "'X-Try' is not NAME:VALUE"),
    (["rollout", "m", "--promote", "--canary-header", "X-Try: yes"], "--canary-header needs --canary"),
    (["rollout", "m", "--promote", "--abort"], "not allowed with"),
)
def test_wrong_usage_exits_2_with_a_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("torchserve-client: ") and re.search(r"; see torchserve-client.* --help$", line)
    assert words in line


def test_reader_of_the_output_may_end_before_it_and_its_disk_may_be_full() -> None:
    for module in ("torchserve_client", "torchserve_batching"):
        command = [sys.executable, "-m", module, "--help"]
        # Nothing reads from this pipe, as if `head` had ended.
        read, write = os.pipe()
        os.close(read)
        full = os.open("/dev/full", os.O_WRONLY)
        own = {**os.environ, "PYTHONUNBUFFERED": ""}
        for output, end in ((write, (141, b"")), (full, (1, b"standard output: No space left on device\n"))):
            ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, env=own, check=False, timeout=60)
            os.close(output)
            assert (ended.returncode, ended.stderr) == end


@table(
    (["embed", "m"], "[1.0]\n[3.0]\n"),
    (["embed", "m", "ab"], "[2.0]\n"),
    (["rerank", "m", "q"], "3.0000  abc\n1.0000  a\n"),
    (["rerank", "m", "q", "--top-n", "1"], "3.0000  abc\n"),
    # A line is not wrapped, however long.
    (["rerank", "m", "q", "ab", LONG], f"199.0000  {LONG}\n2.0000  ab\n"),
)
def test_texts_are_those_of_the_command_or_of_its_input(
    words: list[str], printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(path: str, kind: str, body: bytes) -> Any:
        texts = json.loads(body)["instances"]
        return {"predictions": [[float(len(each))] if isinstance(each, str) else {"score": len(each["document"])}
                                for each in texts]}  # fmt: skip

    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n \nabc\n"))
    with serving(answer) as url:
        assert main(["--url", url, *words]) == 0
    assert capsys.readouterr().out == printed


def test_describe_shows_versions_with_workers_and_queue_and_archives_of_another_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = [{"status": status} for status in ("READY", "UNLOADING", "READY")]
    described = {"modelName": "m", "modelUrl": "m.mar", "batchSize": 8, "maxBatchDelay": 20}
    versions = [
        {**described, "modelVersion": "1.0", "workers": [], "jobQueueStatus": {"pendingRequests": 0}},
        {**described, "modelVersion": "2.0", "workers": workers, "jobQueueStatus": {"pendingRequests": 3}},
    ]
    answers = {"/models/m": versions[1:], "/models/m/all": versions} | {
        f"/models/m/{each['modelVersion']}": [each] for each in versions
    }
    (tmp_path / "model_store").mkdir()
    for name, maker in (("m.mar", VERSION), ("m-1.0.mar", "0.1")):
        with zipfile.ZipFile(tmp_path / "model_store" / name, "w") as archive:
            archive.writestr("build.json", json.dumps({"made_with": maker}))
    monkeypatch.setattr("torchserve_client.cli.HOME", tmp_path)
    listed = {"models": [{"modelName": "m", "modelUrl": "m.mar"}]}
    with serving(lambda path, _kind, _body: answers.get(path, listed)) as url:
        assert main(["--management-url", url, "describe"]) == 0
    head, first, second, upgrade = capsys.readouterr().out.splitlines()
    assert head.split() == ["model", "version", "batch_size", "max_batch_delay", "workers", "waiting"]
    assert first.split() == ["m", "1.0", "8", "20", "ms", "none", "0"]
    assert second.split() == ["m", "2.0", "(default)", "8", "20", "ms", "2", "READY,", "1", "UNLOADING", "3"]
    assert upgrade == f"m 1.0: built with 0.1, installed is {VERSION}; to upgrade, build it again"


def test_unregister_ends_the_journal_of_the_homes_model_store(monkeypatch: pytest.MonkeyPatch) -> None:
    stores: list[Path] = []

    class Ended(Rollout):
        def unregister(self, model: str) -> None:
            stores.append(self.model_store)

    monkeypatch.setattr("torchserve_client.commands.Rollout", Ended)
    monkeypatch.setattr("torchserve_client.cli.HOME", Path("/home"))
    assert main([*NO_SERVER, "unregister", "m"]) == 0
    assert stores == [Path("/home/model_store")]


def test_output_may_be_closed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main([*NO_SERVER, "describe"]) != 0
    sys.stdout.close()
    assert AWAY in capsys.readouterr().err


@pytest.mark.parametrize(("text", "timeout_s"), [("120", 120), ("1.5s", 1.5), ("500ms", 0.5), ("2m", 120)])
def test_timeout_has_a_unit_or_is_seconds(text: str, timeout_s: float) -> None:
    assert parser().parse_args(["wait-ready", "m", "--timeout", text]).timeout == timeout_s


@table(
    *(([*words, "m"], AWAY, 2) for words in (["register"], ["wait-ready"], ["rollout", "--batch-size", "4"])),
    (["predict", "m", "{}/none", "--out", "{}/o"], "none: No such file or directory", 2),
    (["predict", "m", "{}/photo.jpg", "--out", "{}/o"], "neither a folder nor a file of UTF-8 lines", 2),
    (["predict", "m", "{}", "--out", "{}/photo.jpg"], "line 1 is not an answer of `predict`; name another file", 2),
    (["predict", "m", "{}/blank.txt", "--out", "{}/o"], "blank.txt: contains nothing to predict", 2),
    (["predict", "m", "{}", "--out", "{}/no/o"], "No such file or directory", 1),
    (["rollout", "m"], "m: the rollout changes nothing: set --batch-size", 2),
    (["register", "a/b"], "'a/b' is not a valid name: use 1 to 128 letters, digits and", 2),
    (["rollout", "m", "--promote", "--batch-size", "4"], "keep the canary's registration", 2),
    (["--management-url", "http://[", "describe"], "not the address of a server: write http://HOST:PORT", 2),
    (["--token-file", "{}/photo.jpg", "describe"], "not a key_file.json of TorchServe", 2),
)
def test_wrong_files_and_addresses_are_one_line(
    arguments: list[str], words: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    (tmp_path / "blank.txt").write_text("\n \n")
    assert main([*NO_SERVER, *(argument.format(tmp_path) for argument in arguments)]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("torchserve-client: ") and words in line
    assert (tmp_path / "photo.jpg").read_bytes() == b"\xff\xd8\xff"


def test_commands_start_without_numpy() -> None:
    program = "import sys, torchserve_client.cli; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
