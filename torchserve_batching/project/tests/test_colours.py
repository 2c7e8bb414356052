"""`python -m pytest`: the task without an archive and without a server."""

from pathlib import Path

from torchserve_batching.testing import run_task

TASK = Path(__file__).parents[1] / "colour_task.py"


def test_a_batch_has_a_result_or_an_error_for_each_item() -> None:
    named, wrong, two = run_task(TASK, [{"colour": "#00007a"}, {"colour": "blue"}, {"colour": "#00007a", "top_k": 2}])
    assert named == {"names": ["navy"]}
    assert wrong == {"code": 422, "type": "CorruptInput", "message": "colour: must be #rrggbb."}
    assert len(two["names"]) == 2


def test_unknown_options_are_errors() -> None:
    (response,) = run_task(TASK, [{"colour": "#00007a", "shade": "dark"}])
    assert (response["code"], response["type"]) == (400, "InvalidOption")
