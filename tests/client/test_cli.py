import subprocess
import sys
from pathlib import Path

import pytest

from torchserve_client.cli import main

NOBODY = ["--server", "http://127.0.0.1:9", "--management", "http://127.0.0.1:9"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["scale", "m", "two"], "'two' is not a number of 0 or more"),
        (["register", "m", "--batch-size", "0"], "must be 1 or more"),
        (["wait-ready", "m", "--timeout", "nan"], "'nan' is not a number of seconds"),
        (["predict", "m", "photos"], "--out"),
        (["predict", "m", "photos", "--out", "o", "--option", "top_k"], "'top_k' is not NAME=VALUE"),
        (["predict", "m", "photos", "--out", "o", "--option", "lang=\udce9"], "lang: not UTF-8"),
        (["--management", "http://a:1", "--nodes", "n.json", "describe"], "give one"),
        (["rollout", "m", "--canary", "101"], "'101' is not a number from 0 to 100"),
        (["rollout", "m", "--canary", "5", "--canary-header", "X-Try"], "'X-Try' is not NAME:VALUE"),
        (["rollout", "m", "--promote", "--canary-header", "X-Try: yes"], "--canary-header needs --canary"),
        (["rollout", "m", "--promote", "--abort"], "not allowed with"),
    ],
)
def test_wrong_usage_exits_2_and_names_what_is_wrong(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].startswith("torchserve-client")
    assert any(word in captured.err for word in words.split("|"))


@pytest.mark.parametrize(
    "arguments",
    [["describe"], ["register", "m"], ["scale", "m", "1"], ["wait-ready", "m"], ["unregister", "m"],
     ["rollout", "m", "--batch-size", "4"]],
)  # fmt: skip
def test_server_that_is_not_there_exits_2_with_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*NOBODY, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "client: no TorchServe answers at http://127.0.0.1:9 (NoConnection)\n"


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["predict", "m", "{}/none", "--out", "{}/o"], "none: No such file or directory", 2),
        (["predict", "m", "{}/photo.jpg", "--out", "{}/o"], "neither a folder nor a file of UTF-8 lines", 2),
        (["predict", "m", "{}", "--out", "{}/photo.jpg"], "line 1 is no answer of ours; name another file", 2),
        (["predict", "m", "{}/blank.txt", "--out", "{}/o"], "blank.txt: nothing in it to predict", 2),
        (["predict", "m", "{}", "--out", "{}/no/o"], "No such file or directory", 1),
        (["rollout", "m"], "m: the rollout changes nothing: set --batch-size", 2),
        (["register", "a/b"], "'a/b' is not a valid model name: it must not be a dot or two", 2),
        (["rollout", "m", "--promote", "--batch-size", "4"], "take the canary as it is", 2),
        (["--management", "http://[", "describe"], "a server's address is http://HOST:PORT", 2),
        (["--keys", "{}/photo.jpg", "describe"], "not a key_file.json of TorchServe", 2),
    ],
)
def test_wrong_files_and_addresses_are_one_line(
    arguments: list[str], words: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    (tmp_path / "blank.txt").write_text("\n \n")
    assert main([*NOBODY, *(argument.format(tmp_path) for argument in arguments)]) == code
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("client: ")
    assert words in captured.err
    assert (tmp_path / "photo.jpg").read_bytes() == b"\xff\xd8\xff"


def test_commands_start_without_numpy() -> None:
    program = "import sys, torchserve_client.cli; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
