"""The result of an old archive: an entry, settings and files; or one line with the reason. Its code is never run."""

import json
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torchvision
import yaml

from deploy.archives.__main__ import main
from deploy.archives.custom import import_task
from deploy.archives.migrate.custom import find_problems
from deploy.archives.migrate.entry import write_entry
from deploy.archives.state_dicts import read_state
from deploy.models import model, models
from handlers.config import parse
from handlers.errors import InvalidConfig
from handlers.vision.config import ImageClassificationConfig, ImageSegmentationConfig, ObjectDetectionConfig
from tests import tiny_models
from tests.handlers.serving import serve, started
from tests.stock_archives import IRIS, IRIS_LABELS, RESNET, archive, resnet18, saved, scripted
from tests.tables import table

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
DETECTION, SEGMENTATION = torchvision.models.detection, torchvision.models.segmentation
LABELS = json.dumps(dict(enumerate(["daisy", "dandelion", "rose", "sunflower", "tulip"])))
METHOD = "class H(BaseHandler):\n    def preprocess(self, data):\n        return "
CLASS = "class Network({}):\n    def __init__(self):\n        super().__init__()\nopen('code-has-run', 'w')\n"
NO_HEAD = {"fc.weight": torch.empty(9, 0), "fc.bias": torch.empty(9, 0)}
FORWARD = RESNET + "    def forward(self, x):\n        return -super().forward(x)\n"
RESERVED = ("models.yaml", "Requirements.txt", "task_a.py", ".git")
UNKNOWN, RESNET18 = "not those of a network in torchvision.models; add --stock", resnet18().state_dict()
SLOW = """
import json
from ts.torch_handler.base_handler import BaseHandler
NAMES = json.load(open("index_to_name.json"))
class Slow(BaseHandler):
    def preprocess(self, data):
        return json.loads(data[0]["body"].decode())
    def inference(self, inputs):
        return [self.model(each) for each in inputs]
    def handle(self, data, context):
        results = []
        for row in data:
            results.append(self.model(row))
        return results
_service = Slow()
def handle(data, context):
    return _service.handle(data, context)
"""


@pytest.fixture(autouse=True)
def _no_code_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "code-has-run").exists()


@pytest.fixture
def few_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = {
        torchvision.models: ["alexnet", "resnet18"],
        DETECTION: ["fasterrcnn_mobilenet_v3_large_fpn", "ssdlite320_mobilenet_v3_large"],
        SEGMENTATION: ["fcn_resnet50", "lraspp_mobilenet_v3_large"],
    }
    monkeypatch.setattr(torchvision.models, "list_models", lambda package: networks[package])


def move(path: Path, name: str | None = None, *, is_stock: bool = False) -> tuple[Any, dict[str, Any], Path]:
    found, _ = write_entry(path, name, Path("my/models.yaml"), is_stock=is_stock)
    entry = model(found, Path("my/models.yaml"))
    return entry, entry.config(), entry.folder


@pytest.mark.builds
@pytest.mark.parametrize("form", ["eager", "scripted"])
def test_classifier_is_moved(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str], few_networks: None) -> None:
    network = resnet18()
    files: dict[str, Any] = {"index_to_name.json": LABELS, "model-config.yaml": "batchSize: 8\nmaxWorkers: 2\n"}
    names = {"serializedFile": "w.pt", "configFile": "model-config.yaml"}
    if form == "eager":
        files |= {"w.pt": saved(network.state_dict(), tmp_path / "w.pt"), "model.py": RESNET}
        names["modelFile"] = "model.py"
    else:
        files["w.pt"] = scripted(network, tmp_path / "w.pt")
    entry, config, folder = move(archive(tmp_path / "flowers.mar", "image_classifier", files, **names))
    assert (entry.handler, entry.version) == ("image_classification", "1.0")
    assert entry.weights == {"path": "flowers/model.pt"}
    settings = parse(ImageClassificationConfig, config["handler"])
    assert (settings.arch, settings.resize_size, settings.crop_size, settings.top_k) == ("resnet18", 256, 224, 5)
    assert (settings.precision, settings.scaled_decode, config["maxWorkers"]) == ("fp32", False, 2)
    state = read_state(entry, folder / "model.pt", ())
    assert all(torch.equal(state[name], tensor) for name, tensor in network.state_dict().items())
    assert (folder / "index_to_name.json").read_text() == LABELS
    printed = capsys.readouterr()
    assert "its code is read as text and not run" in printed.out and "names and shapes of the weights" in printed.out
    assert re.search("maxWorkers +2 +model-config.yaml", printed.out) and "batchSize 8 is left out" in printed.err


def network_archive(tmp_path: Path, handler: str, package: Any, arch: str, base: str) -> Path:
    torch.manual_seed(1)
    network = getattr(package, arch)(weights=None, weights_backbone=None, num_classes=4)
    weights = saved(network.state_dict(), tmp_path / "w.pth")
    files: dict[str, Any] = {"w.pth": weights, "model.py": f"# {arch}\n" + CLASS.format(base)}
    return archive(tmp_path / "old.mar", handler, files, serializedFile="w.pth", modelFile="model.py")


@pytest.mark.builds
def test_detector_and_segmenter_become_entries_with_the_old_form(tmp_path: Path, few_networks: None) -> None:
    path = network_archive(tmp_path, "object_detector", DETECTION, "ssdlite320_mobilenet_v3_large", "SSD")
    _, config, folder = move(path, "things")
    found = parse(ObjectDetectionConfig, config["handler"])
    assert (found.arch, found.threshold, found.answer) == ("ssdlite320_mobilenet_v3_large", 0.5, "torchserve")
    assert json.loads((folder / "index_to_name.json").read_text()) == {"0": "0", "1": "1", "2": "2", "3": "3"}
    path = network_archive(tmp_path, "image_segmenter", SEGMENTATION, "lraspp_mobilenet_v3_large", "LRASPP")
    _, config, _ = move(path, "areas")
    areas = parse(ImageSegmentationConfig, config["handler"])
    assert (areas.arch, areas.resize_size, areas.crop_size) == ("lraspp_mobilenet_v3_large", 256, 224)


@table(
    ("sequence_classification", {"0": "no", "1": "yes"}, {"0": "no", "1": "yes"}),
    ("token_classification", {"label_list": "[O, B-PER]"}, {"0": "O", "1": "B-PER"}),
    ("question_answering", {}, None),
)
def test_transformers_example_is_a_checkpoint(
    mode: str, names: dict[str, str], labels: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = mode.replace("sequence", "text")
    source = tiny_models.checkpoint(tmp_path / "source", "bert", task, ("a", "b"))
    setup = {"mode": mode, "save_mode": "pretrained", "model_name": "bert", "do_lower_case": True, "max_length": "150"}
    files: dict[str, Any] = {path.name: path for path in source.iterdir()}
    files |= {"setup_config.json": json.dumps(setup), "index_to_name.json": json.dumps(names)}
    files["h.py"] = "from transformers import AutoTokenizer\nopen('code-has-run', 'w')"
    path = archive(tmp_path / "bert.mar", "h.py", files, serializedFile="model.safetensors")
    entry, config, folder = move(path)
    assert (entry.handler, entry.weights) == (task, {"path": "bert/checkpoint"})
    assert (config["handler"]["max_length"], config["handler"]["truncation"]) == (150, True)
    printed = capsys.readouterr().out
    if labels is not None:
        assert json.loads((folder / "checkpoint" / "config.json").read_text())["id2label"] == labels
        assert re.search(f"id2label +{', '.join(labels.values())} +index_to_name.json", printed)
    assert not [*folder.rglob("*.py")]

    # A vocabulary alone needs to hear of its case.
    stated = json.loads((source / "tokenizer_config.json").read_text())
    assert json.loads((folder / "checkpoint" / "tokenizer_config.json").read_text()) == stated
    del files["tokenizer.json"]
    path = archive(tmp_path / "bert.mar", "h.py", {**files, "vocab.txt": ""}, serializedFile="model.safetensors")
    plain = move(path, "plain")[2] / "checkpoint" / "tokenizer_config.json"
    assert json.loads(plain.read_text()) == {**stated, "do_lower_case": True}


def classifier(folder: Path, state: Any, **files: str) -> Path:
    names = {"modelFile": "model.py"} if "model.py" in files else {}
    content: dict[str, Any] = {"w.pth": saved(state, folder / "w.pth"), **files}
    return archive(folder / "old.mar", "image_classifier", content, serializedFile="w.pth", **names)


def example(folder: Path, save_mode: str, others: dict[str, str]) -> Path:
    setup = {"mode": "sequence_classification", "save_mode": save_mode}
    own = {"setup_config.json": json.dumps(setup), "h.py": "from transformers import AutoTokenizer"}
    return archive(folder / "old.mar", "h.py", own | others)


@table(
    (
        lambda to: network_archive(to, "object_detector", DETECTION, "fasterrcnn_mobilenet_v3_large_fpn", "FasterRCNN"),
        "fasterrcnn_mobilenet_v3_large_.*: it chooses boxes inside the network.*--stock",
    ),
    (lambda to: classifier(to, RESNET18, **{"model.py": FORWARD}), "model.py defines forward.*--stock"),
    (lambda to: classifier(to, {"a.b": torch.zeros(1)}, **{"resnet.py": ""}), UNKNOWN),
    # Head without numbers, which would be nine classes.
    (lambda to: classifier(to, RESNET18 | NO_HEAD), UNKNOWN),
    (lambda to: archive(to / "old.mar", "text_classifier", {}), "a pickle of torchtext, which has ended"),
    (lambda to: archive(to / "old.mar", "dali_image_classifier", {}), "not a handler .* add --stock"),
    *(
        (partial(example, save_mode=mode, others=others), f"save_mode {mode}: TorchScript has no config.json.*--stock")
        for mode, others in (("torchscript", {"config.json": "{}"}), ("pretrained", {}))
    ),
)
def test_archive_that_cannot_be_moved_is_one_line(make: Any, reason: str, tmp_path: Path, few_networks: None) -> None:
    with pytest.raises(InvalidConfig, match=reason) as error:
        move(make(tmp_path), "old")
    assert "\n" not in str(error.value) and not Path("my").exists()


@table(
    ({"modelVersion": "../../x"}, IRIS, "'../../x' is not a valid name: .*; change it in its MANIFEST.json"),
    ({"modelVersion": "1.0 rc1"}, IRIS, "'1.0 rc1' is not a valid name"),
    ({"modelName": "../x"}, IRIS, "'../x' is not a valid name"),
    *(({"modelName": name}, IRIS, f"{name} may be a file that my needs; add another name") for name in RESERVED),
    ({}, f"x = {'-' * 200_000}1", "old.mar: cannot be read: MemoryError; add --stock"),
    ({}, METHOD + "-" * 2000 + "1", "old.mar: cannot be read: RecursionError: .*; add --st"),
)
@pytest.mark.parametrize("has_list", [False, True])
def test_manifest_or_code_that_cannot_be_an_entry_is_rejected_before_anything_is_written(
    manifest: dict[str, str], handler: str, reason: str, has_list: bool, tmp_path: Path
) -> None:
    if has_list:
        Path("my").mkdir()
        Path("my/models.yaml").write_text("a: {task: stock, version: '1'}")
    path = archive(tmp_path / "old.mar", "h.py", {"h.py": handler}, **manifest)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidConfig, match=reason):
        write_entry(path, None, Path("my/models.yaml"), is_stock=False)
    assert sorted(tmp_path.rglob("*")) == before


@table(
    ("# mine\na: {task: stock, version: '1'}", "# mine\na: {task: stock, version: '1'}\nold:\n"),
    ("{}", "old:\n"),
    ("{a: {task: stock, version: '1'}}", "a:\n  task: stock\n  version: '1'\nold:\n"),
    ("# none\n", "# none\nold:\n"),
    ("", "old:\n"),
)
def test_list_of_any_form_stays_valid(listed: str, expected: str, tmp_path: Path) -> None:
    Path("my").mkdir()
    Path("my/models.yaml").write_text(listed)
    files = {"h.py": IRIS, "model-config.yaml": "handler: {trust_remote_code: true}"}
    entry, config, _ = move(archive(tmp_path / "old.mar", "h.py", files))
    assert Path("my/models.yaml").read_text().startswith(expected)
    assert (entry.handler, config) == ("task_old.py", {})
    assert sorted(path.name for path in Path("my").iterdir()) == ["models.yaml", "old", "task_old.py"]


def iris(tmp_path: Path, handler: str = IRIS, **more: str) -> Path:
    torch.manual_seed(1)
    weights = scripted(torch.nn.Linear(4, 3), tmp_path / "iris.pt")
    files: dict[str, Any] = {"iris_handler.py": handler, "iris.pt": weights, "index_to_name.json": IRIS_LABELS, **more}
    names = {"requirementsFile": "requirements.txt"} if "requirements.txt" in more else {}
    return archive(tmp_path / "iris.mar", "iris_handler.py", files, serializedFile="iris.pt", **names)


def test_draft_of_a_custom_handler_is_a_task_that_answers_as_the_handler_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry, _, folder = move(iris(tmp_path))
    draft = tmp_path / "my" / "task_iris.py"
    assert entry.handler == "task_iris.py" and draft.read_text().count("BATCHING") >= 6
    assert "complete task_iris.py" in capsys.readouterr().err
    # TorchServe would run the archive's own file of this name.
    own = archive(tmp_path / "own.mar", "image_classifier", {"image_classifier.py": IRIS})
    assert move(own)[0].handler == "task_own.py"
    Path("my/taken").mkdir()
    with pytest.raises(InvalidConfig, match="my/taken has it already"):
        move(own, "taken")
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    handler = started(import_task(draft)(), folder, {})
    network: Any = torch.jit.load(folder / "iris.pt")  # type: ignore[no-untyped-call]
    features = [[1.0, 2, 3, 4], [-5, 2, 0, 1], [0, 0, 9, 0]]
    expected = [json.loads(IRIS_LABELS)[str(at)] for at in network(torch.tensor(features)).argmax(1).tolist()]
    bodies = [json.dumps({"features": each}).encode() for each in features]
    answers = serve(handler, bodies, [{"body": {"content-type": "application/json"}}] * len(bodies))
    assert [answer.body for answer in answers] == [{"class": label} for label in expected]
    assert len(set(expected)) > 1


def test_problems_are_named_and_single_rows_stay_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry, config, folder = move(iris(tmp_path, SLOW, **{"requirements.txt": "rapidfuzz\n"}), is_stock=True)
    assert (entry.handler, entry.weights, config["batchSize"]) == ("stock", {"path": "iris/old"}, 1)
    assert (folder / "old" / "MAR-INF" / "MANIFEST.json").is_file()
    problems = capsys.readouterr().err
    for words in (
        "requirements.txt (rapidfuzz): not installed",
        "line 4 reads a file when it is imported",
        "handle (line 12) runs the model once for each row",
        "inference (line 9) runs the model once for each row",
        "preprocess (line 6) reads only data[0]",
        "decode_input_request",
    ):
        assert words in problems
    assert main(["--from", str(archive(tmp_path / "old.mar", "\x1b]0;title\x07\u202e", {}))]) == 1
    printed = capsys.readouterr().err
    assert r"handler \x1b]0;title\x07\u202e: not a handler" in printed and printed.rstrip("\n").isprintable()
    assert move(iris(tmp_path, SLOW), "draft")[1] == {}


@pytest.mark.builds
def test_command_builds_and_rejects_a_taken_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = iris(tmp_path)
    command = ["--from", str(path), "--stock", "--export-path", str(tmp_path / "store")]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("runs the archive's own code") == 1
    assert (tmp_path / "store" / "iris.mar").is_file()
    assert (yaml.safe_load(Path("my/models.yaml").read_text()).keys(), main(command)) == ({"iris"}, 1)
    assert "choose another name" in capsys.readouterr().err
    shutil.rmtree("my")


LOOP = "class H(BaseHandler):\n    def preprocess(self, data):\n        first = data[0]\n        {}\n"


@table(
    (
        "return first",
        {"batchSize": 4},
        ["preprocess (line 2) reads only data[0]: batchSize 1, until it is moved"],
        True,
    ),
    # It reads the first row, and every one.
    ("return [each for each in data]", {"batchSize": 4}, [], False),
    ("for each in data: yield each", {}, ["its batch size was 1, unless its registration said more: "], False),
    (
        "return [self.model(each) for each in data]",
        {"batchSize": 2},
        ["preprocess (line 4) runs the model once"],
        False,
    ),
)
def test_handler_of_one_row_is_one_that_reads_the_first_and_loops_over_none(
    end: str, config: dict[str, Any], expected: list[str], is_single: bool
) -> None:
    found, found_single = find_problems(Mock(config=config, **{"path.return_value": None}), LOOP.format(end))
    assert found_single is is_single and len(found) == len(expected)
    assert all(line.startswith(words) for line, words in zip(found, expected, strict=True))


def test_archives_that_are_moved_side_by_side_all_get_an_entry(tmp_path: Path) -> None:
    listed, names = Path("my/models.yaml"), [f"m{number}" for number in range(6)]
    paths = [archive(tmp_path / f"{name}.mar", "h.py", {"h.py": IRIS}) for name in names]
    with ThreadPoolExecutor(4) as pool:
        moved = [*pool.map(lambda path: write_entry(path, None, listed, is_stock=False)[0], paths)]
    assert (moved, sorted(models(listed))) == (names, sorted(names))
