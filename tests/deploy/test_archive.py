import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
import torchvision
import yaml

from deploy.archive import Recipe, main
from deploy.fingerprint import built_from
from deploy.models import ROOT, Model, model
from deploy.sources import WeightsUnavailable
from handlers.errors import InvalidConfig
from tests.exports import shared
from tests.photographs import path as photograph_path

MOBILENET = model("mobilenet-v2")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store that finds what other tests have exported; what is about exporting has one of its own."""
    folder = tmp_path_factory.mktemp("model_store")
    (folder / ".exports").symlink_to(shared())
    return folder


@pytest.fixture(scope="module")
def archive(store: Path) -> Path:
    """examples/mobilenet-v2 as archive.sh builds it."""
    with redirect_stdout(io.StringIO()) as printed:
        assert main(["mobilenet-v2", "--export-path", str(store)]) == 0
    built, *proofs = printed.getvalue().splitlines()
    assert re.fullmatch(r".*mobilenet-v2\.mar: built, version 1\.0, \d+ MB, \d+ s", built)
    # A processor without bf16 has nothing to compare.
    assert all(
        re.fullmatch(r".*mobilenet-v2\.mar: bf16: top-1 [01]\.\d{4} of 20 samples, largest change 0\.\d{4}.*", line)
        for line in proofs
    )
    return store / "mobilenet-v2.mar"


def archive_sh(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "archive.sh"), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
        timeout=300,
    )


LOAD_AND_SERVE = """
import json, os, sys
from ts.model_loader import TsModelLoader
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
metrics = MetricsCacheYamlImpl(sys.argv[1])
metrics.initialize_cache()
service = TsModelLoader().load("m", os.getcwd(), "image_classification.py", None, 4, metrics_cache=metrics)
service.set_cl_socket(None)
parameter = {"name": "body", "contentType": "image/png", "value": open(sys.argv[2], "rb").read()}
batch = [{"requestId": f"r{i}".encode(), "headers": [], "parameters": [parameter]} for i in range(3)]
sys.stdout.buffer.write(b"\\nREPLY" + bytes(service.predict(batch)))
"""


def test_archive_unpacked_serves_a_batch_through_torchserves_own_loader(archive: Path, tmp_path: Path) -> None:
    """In a process that sees the archive and the installed packages, and nothing of this repository."""
    shutil.unpack_archive(archive, tmp_path, "zip")
    finished = subprocess.run(
        [sys.executable, "-c", LOAD_AND_SERVE, str(ROOT / "deploy" / "metrics.yaml"), str(photograph_path("chelsea"))],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
        timeout=120,
    )
    reply = finished.stdout.rpartition(b"REPLY")[2]
    assert reply.count(b'{"Egyptian cat":0.7') == 3, finished.stdout[-2000:] + finished.stderr[-2000:]


def test_archive_holds_manifest_labels_and_both_engines(archive: Path) -> None:
    with zipfile.ZipFile(archive) as mar:
        names = set(mar.namelist())
        manifest = json.loads(mar.read("MAR-INF/MANIFEST.json"))
        labels = json.loads(mar.read("index_to_name.json"))
        config = yaml.safe_load(mar.read("model-config.yaml"))
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in mar.infolist())
    assert {"model.xml", "model.bin", "model.pt", "image_classification.py", "handlers/base.py"} <= names
    assert not [name for name in names if "pycache" in name or name.startswith(("client", "load", "tests"))]
    assert manifest["model"] == {
        "modelName": "mobilenet-v2",
        "handler": "image_classification.py",
        "modelVersion": "1.0",
        "configFile": "model-config.yaml",
    }
    assert (labels["0"], labels["281"], len(labels)) == ("tench", "tabby", 1000)
    assert config["handler"]["engine"] == "auto"


def test_archive_of_same_inputs_is_left_alone_and_force_rebuilds(archive: Path, store: Path) -> None:
    before = archive.stat().st_mtime_ns
    finished = archive_sh("mobilenet-v2", "--export-path", str(store))
    assert finished.stdout.endswith("mobilenet-v2.mar: up to date\n")
    assert archive.stat().st_mtime_ns == before
    recipe = Recipe(MOBILENET, export_path=store)
    assert recipe.find() is not None
    assert Recipe(MOBILENET, engine="torch", export_path=store).find() is None
    assert recipe.build().is_new
    assert archive.stat().st_mtime_ns > before


REBUILD = """
import sys
from deploy.archive import main
code = main(sys.argv[1:])
print(sorted({"torch", "openvino"} & set(sys.modules)))
sys.exit(code)
"""


def test_archive_rebuilt_takes_its_export_from_the_cache_without_importing_torch(archive: Path, store: Path) -> None:
    with zipfile.ZipFile(archive) as mar:
        before = {name: mar.getinfo(name).CRC for name in ("model.xml", "model.bin", "model.pt", "index_to_name.json")}
    finished = subprocess.run(
        [sys.executable, "-c", REBUILD, "mobilenet-v2", "--force", "--export-path", str(store)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == "[]"
    with zipfile.ZipFile(archive) as mar:
        assert {name: mar.getinfo(name).CRC for name in before} == before


STAGE = """
import sys, tempfile
from pathlib import Path
from deploy.models import model
from deploy.sources import source
from deploy.vision import stage
entry = model("mobilenet-v2")
for engine in ("torch", "openvino"):
    with tempfile.TemporaryDirectory() as folder:
        stage(entry, source(entry, None), engine, Path(folder))
        # What openvino.convert_model imports when it traces a module.
        print(engine, sorted(path.name for path in Path(folder).iterdir()), "openvino.frontend.pytorch" in sys.modules)
"""


def test_stage_of_images_for_torch_exports_no_graph() -> None:
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STAGE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert finished.stdout.splitlines() == [
        "torch ['index_to_name.json', 'model.pt'] False",
        "openvino ['index_to_name.json', 'model.bin', 'model.xml'] True",
    ], finished.stderr


def test_archive_of_a_damaged_export_in_a_cache_of_the_users_is_made_anew(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHE_DIR", str(tmp_path / "cache"))
    arguments = ["mobilenet-v2", "--engine", "torch", "--force", "--export-path", str(tmp_path / "store")]
    assert main(arguments) == 0
    assert not (tmp_path / "store" / ".exports").exists()
    (weights,) = (tmp_path / "cache").rglob("model.pt")
    os.truncate(weights, 1000)
    assert main(arguments) == 0
    with zipfile.ZipFile(archive) as whole, zipfile.ZipFile(tmp_path / "store" / "mobilenet-v2.mar") as mar:
        assert mar.getinfo("model.pt").CRC == whole.getinfo("model.pt").CRC


@pytest.mark.parametrize(
    ("engine", "present", "absent"), [("openvino", "model.xml", "model.pt"), ("torch", "model.pt", "model.xml")]
)
def test_archive_for_one_engine_carries_only_its_model(engine: str, present: str, absent: str, store: Path) -> None:
    recipe = Recipe(MOBILENET, engine=engine, archive_format="no-archive", export_path=store)  # type: ignore[arg-type]
    folder = recipe.build().path
    assert (folder / present).is_file()
    assert not (folder / absent).exists()
    assert yaml.safe_load((folder / "model-config.yaml").read_text())["handler"]["engine"] == engine


def test_archive_formats_all_remember_what_they_were_built_from(tmp_path: Path) -> None:
    found = []
    for archive_format in ("default", "tgz", "no-archive"):
        recipe = Recipe(MOBILENET, engine="torch", archive_format=archive_format, export_path=tmp_path)
        built = recipe.build()
        found.append((built.path.name, recipe.find() is not None))
    assert found == [("mobilenet-v2.mar", True), ("mobilenet-v2.tar.gz", True), ("mobilenet-v2", True)]
    with tarfile.open(tmp_path / "mobilenet-v2.tar.gz") as tgz:
        assert "mobilenet-v2/MAR-INF/MANIFEST.json" in tgz.getnames()
    assert Recipe(MOBILENET, engine="torch", archive_format="no-archive", export_path=tmp_path).build().is_new
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".exports",
        "mobilenet-v2",
        "mobilenet-v2.mar",
        "mobilenet-v2.tar.gz",
    ]


def test_archive_two_builds_of_one_model_at_once_both_succeed(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        arguments = ("mobilenet-v2", "--force", "--engine", "torch", "--export-path", str(tmp_path))
        finished = list(pool.map(lambda _: archive_sh(*arguments), range(2)))
    assert [f.returncode for f in finished] == [0, 0], [f.stderr for f in finished]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".exports", "mobilenet-v2.mar"]
    (entry,) = (tmp_path / ".exports").iterdir()
    assert sorted(path.name for path in entry.iterdir()) == ["files", "sums.json"]
    assert built_from(tmp_path / "mobilenet-v2.mar") is not None


def test_archive_random_weights_are_loud_and_marked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["mobilenet-v2", "--weights", "random", "--engine", "torch", "--export-path", str(tmp_path)]) == 0
    printed = capfd.readouterr()
    assert "version 1.0-untrained" in printed.out
    assert "UNTRAINED" in printed.err
    first = torch.load(_extract(tmp_path / "mobilenet-v2.mar", "model.pt"), weights_only=True)
    # Elsewhere, where no export is cached.
    apart = tmp_path / "apart"
    assert main(["mobilenet-v2", "--weights", "random", "--engine", "torch", "--export-path", str(apart)]) == 0
    again = torch.load(_extract(apart / "mobilenet-v2.mar", "model.pt"), weights_only=True)
    assert all(torch.equal(first[name], again[name]) for name in first)


def _extract(archive: Path, name: str) -> Path:
    with zipfile.ZipFile(archive) as mar:
        return Path(mar.extract(name, archive.parent / "extracted"))


def test_archive_without_network_or_weights_says_in_one_line_what_to_give(tmp_path: Path) -> None:
    finished = archive_sh(
        *("resnet-152", "--export-path", str(tmp_path)),
        # An empty download cache, and a proxy that does not exist.
        TORCH_HOME=str(tmp_path / "cache"),
        https_proxy="http://127.0.0.1:9",
    )
    assert finished.returncode == 1
    (line,) = finished.stderr.splitlines()
    assert line.startswith("archive.sh: resnet-152: cannot fetch https://")
    assert line.endswith("give --weights PATH (a state dict), or --weights random for an untrained demo")
    assert not list(tmp_path.glob("*.mar"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["resnet-153"], "resnet-153: not in models.yaml; known are resnet-152, mobilenet-v2"),
        (["mobilenet-v2", "--weights", "missing.pt"], "no file missing.pt; give --weights PATH"),
        (["mobilenet-v2", "--weights", __file__], "is no state dict"),
    ],
)
def test_archive_bad_arguments_stop_with_one_line(
    arguments: list[str], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--export-path", str(tmp_path)]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert words in line


@pytest.mark.parametrize(
    "arguments", [[], ["--all", "resnet-152"], ["--all", "--weights", "x.pt"], ["a", "--engine", "x"]]
)
def test_archive_unusable_command_line_exits_2(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


def own_model(folder: Path, classes: int, labels: list[str] | None) -> Model:
    """A user's model outside this repository: a checkpoint of a training run, and a folder beside a list."""
    (folder / "flowers").mkdir(parents=True)
    network = torchvision.models.resnet18(num_classes=classes)
    state = {f"module.{name}": tensor for name, tensor in network.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state}, folder / "checkpoint.pt")
    (folder / "flowers" / "model-config.yaml").write_text("handler: {arch: resnet18}\n")
    if labels is not None:
        named = {str(index): ["n0", label] for index, label in enumerate(labels)}
        (folder / "flowers" / "index_to_name.json").write_text(json.dumps(named))
    (folder / "models.yaml").write_text('flowers: {handler: image_classification, version: "2.1"}\n')
    return model("flowers", folder / "models.yaml")


def test_archive_of_a_users_checkpoint_takes_classes_and_labels_from_their_files(tmp_path: Path) -> None:
    entry = own_model(tmp_path, 3, ["rose", "tulip", "daisy"])
    weights = str(tmp_path / "checkpoint.pt")
    recipe = Recipe(entry, weights, archive_format="no-archive", export_path=tmp_path / "store")
    built = recipe.build()
    assert built.version == "2.1"
    assert json.loads((built.path / "index_to_name.json").read_text()) == {"0": "rose", "1": "tulip", "2": "daisy"}


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (None, "the weights have 3 classes; name them in .*flowers/index_to_name.json"),
        (["rose", "tulip"], "the weights have 3 classes"),
        (["rose", "tulip", "rose"], "two classes have the same name"),
    ],
)
def test_archive_without_fitting_labels_is_refused(
    labels: list[str] | None, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    own_model(tmp_path, 3, labels)
    arguments = ["flowers", "--models", str(tmp_path / "models.yaml"), "--weights", str(tmp_path / "checkpoint.pt")]
    assert main([*arguments, "--export-path", str(tmp_path / "store")]) == 1
    assert re.search(words, capfd.readouterr().err)


@pytest.mark.parametrize(
    ("arch", "words"),
    [
        ("resnet19", "arch: resnet19 is no classifier of torchvision.models"),
        ("resnet34", "not those of resnet34: Missing"),
    ],
)
def test_archive_of_an_architecture_that_does_not_fit_is_refused(arch: str, words: str, tmp_path: Path) -> None:
    entry = own_model(tmp_path, 3, ["a", "b", "c"])
    entry.config_path.write_text(f"handler: {{arch: {arch}}}\n")
    with pytest.raises((InvalidConfig, WeightsUnavailable), match=words):
        Recipe(entry, str(tmp_path / "checkpoint.pt"), engine="torch", export_path=tmp_path / "store").build()


def test_archive_of_a_model_without_weights_asks_for_them(tmp_path: Path) -> None:
    own_model(tmp_path, 3, None)
    finished = archive_sh("flowers", "--models", str(tmp_path / "models.yaml"))
    assert finished.returncode == 1
    assert "flowers: the list names no weights; give --weights PATH" in finished.stderr
