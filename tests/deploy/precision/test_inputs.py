"""Inputs are read as the client reads them, decoded by the task, and divided by a seed."""

from pathlib import Path

import pytest

from deploy.loaded import loaded
from deploy.models import model
from deploy.precision import samples
from deploy.precision.inputs import decoded, left_out, listed, some, split
from handlers.config import parse
from handlers.errors import InvalidConfig
from handlers.text.config import QuestionAnsweringConfig, TextConfig
from tests import tiny_models
from tests.photographs import crops


@pytest.mark.parametrize(("count", "held_out"), [(10, 3), (11, 3), (12, 3), (200, 50)])
def test_split_keeps_a_quarter_back_and_is_the_same_each_time(count: int, held_out: int) -> None:
    inputs = some(range(count))
    calibration, validation = split(inputs)
    assert (len(calibration), len(validation)) == (count - held_out, held_out)
    assert sorted(calibration + validation) == list(range(count))
    assert split(some(range(count))) == (calibration, validation)
    # Not the first of a folder, which may be of one kind.
    assert sorted(validation) != list(range(held_out))


def test_no_more_are_read_than_both_parts_may_have() -> None:
    assert len(set(some(range(10_000)))) == 400


def test_texts_of_a_file_and_of_a_folder_are_items(tmp_path: Path) -> None:
    task = loaded("sentence_embedding", tiny_models.staged(tmp_path / "a", "bert", "sentence_embedding"), TextConfig())
    (tmp_path / "lines.txt").write_text('plum cake\n\n{"text": "is no JSON here"}\n', encoding="utf-8")
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "one.txt").write_text("plum\ncake", encoding="utf-8")
    (tmp_path / "folder" / "deep" / "two.txt").write_bytes(b"\xff\xfe")
    items, refused = decoded(task, listed(tmp_path / "lines.txt"), is_text=True)
    assert [item.text for item in items] == ["plum cake", '{"text": "is no JSON here"}']
    assert refused == []
    items, refused = decoded(task, listed(tmp_path / "folder"), is_text=True)
    assert [item.text for item in items] == ["plum\ncake"]
    assert len(refused) == 1
    assert refused[0].startswith("deep/two.txt: ")
    assert left_out(tmp_path, 2, refused) == f"{tmp_path}: 1 of 2 inputs are left out: {refused[0]}"
    with pytest.raises(InvalidConfig, match=r"the model takes none of its 1 inputs: deep/two\.txt"):
        left_out(tmp_path, 1, refused)


def test_questions_are_lines_of_json(tmp_path: Path) -> None:
    folder = tiny_models.staged(tmp_path / "a", "bert", "question_answering")
    task = loaded("question_answering", folder, QuestionAnsweringConfig())
    path = tmp_path / "lines.jsonl"
    path.write_text(
        '{"question": "Who kept the inn?", "context": "Anna kept the inn."}\nWho?\n[1]\n{"question": "Who?"}\n',
        encoding="utf-8",
    )
    items, refused = decoded(task, listed(path), is_text=True)
    assert [(item.question, item.text) for item in items] == [("Who kept the inn?", "Anna kept the inn.")]
    assert [line.partition(":")[0] for line in refused] == ["2", "3", "4"]
    assert refused[0] == "2: not a JSON object of context and question"


@pytest.mark.parametrize("name", ["mobilenet-v2", "resnet-152", "resnet-152-adaptive"])
def test_images_of_the_examples_are_twenty_crops_that_a_model_takes(name: str) -> None:
    found = samples.payloads(model(name))
    assert len({bytes(each.value) for each in found if isinstance(each.value, bytes)}) == 20
    assert samples.payloads(model(name)) == found


@pytest.mark.parametrize("name", ["text-classification", "token-classification", "question-answering", "embedding"])
def test_texts_of_the_examples_are_some_twenty(name: str, tmp_path: Path) -> None:
    handler = model(name).handler
    config = QuestionAnsweringConfig() if handler == "question_answering" else None
    folder = tiny_models.staged(tmp_path, "distilbert", handler)
    from deploy.tasks import BUILT_IN  # noqa: PLC0415

    task = loaded(handler, folder, config or parse(BUILT_IN[handler].settings_class(), {}))
    items = [task.decode(each) for each in samples.payloads(model(name))]
    assert 20 <= len(items) <= 40


def test_folder_of_photographs_leaves_out_what_is_none(tmp_path: Path) -> None:
    from handlers.vision.config import ImageClassificationConfig  # noqa: PLC0415

    for number, body in enumerate(crops(2, sides=(64, 65))):
        (tmp_path / f"{number}.jpg").write_bytes(body)
    (tmp_path / "cut.jpg").write_bytes(crops(1, sides=(64, 65))[0][:300])
    (tmp_path / "notes.txt").write_text("labels")
    (tmp_path / ".hidden").write_text("")
    from deploy.loaded import task_class  # noqa: PLC0415
    from handlers.vision.images import Geometry  # noqa: PLC0415

    task = task_class("image_classification")()
    task.config = ImageClassificationConfig(arch="resnet18")
    task.geometry = Geometry(256, 224, 10**6, True, 10**7)
    items, refused = decoded(task, listed(tmp_path), is_text=False)
    assert [item.pixels.shape for item in items] == [(224, 224, 3)] * 2
    assert sorted(line.partition(":")[0] for line in refused) == ["cut.jpg", "notes.txt"]
