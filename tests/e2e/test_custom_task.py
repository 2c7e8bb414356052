"""examples/custom-task on the real TorchServe: a task of one file among the requests of many clients."""

import json
from collections.abc import Callable

from deploy.models import ROOT, model
from deploy.server import Server
from tests.e2e.conftest import curl, send_together, url

EXAMPLE = ROOT / "examples" / "custom-task"
NAME = "colours"


def test_custom_task_served_answers_many_at_once_and_bad_ones_fail_alone(
    server: Server, archive: Callable[..., str], serve: Callable[..., str]
) -> None:
    entry = model(NAME, EXAMPLE / "models.yaml")
    serve(archive=archive(entry, engine="auto"), name=NAME, batch_size=32, max_batch_delay_ms=200)
    document = EXAMPLE / NAME / "colours.json"
    listed = curl("-H", "Content-Type: application/json", "--data-binary", f"@{document}", url(server, NAME))
    assert json.loads(listed)["predictions"] == [["chocolate", "brown"], ["navy", "indigo"]]

    bodies = [b"#dc143c"] * 16
    bodies[3], bodies[7], bodies[11] = b"crimson", b"\xff\xfe", b"#00ff0"
    bodies[15] = b"#30d5c8"
    answers = send_together(server, NAME, bodies)
    statuses = {index: answer.status for index, answer in enumerate(answers) if answer.status != 200}
    assert statuses == {3: 422, 7: 400, 11: 422}
    assert [answers[index].body["type"] for index in statuses] == ["CorruptInput", "InvalidText", "CorruptInput"]
    good = [answer.body for answer in answers if answer.status == 200]
    assert good == [["crimson"]] * 12 + [["turquoise"]]
    sizes = [int(answer.headers["Server-Timing"].split('"')[1]) for answer in answers if answer.status == 200]
    assert max(sizes) >= 4
