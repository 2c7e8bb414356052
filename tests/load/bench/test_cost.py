"""The parts of `make bench ONLY=cost`: the clock around hooks, and what is made of what it says."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from deploy.archive import Recipe
from deploy.models import ROOT, model
from load.bench import cost
from load.bench.hook_clock import HookClock
from load.bench.identity import INFER


def spin(seconds: float) -> None:
    ends_s = time.thread_time() + seconds
    while time.thread_time() < ends_s:
        pass


def test_clock_counts_a_step_without_the_steps_inside_it() -> None:
    clock = HookClock()
    inner = clock.timed("inner", lambda: spin(0.05))

    def both() -> None:
        inner()
        spin(0.01)
        inner()

    clock.timed("outer", both)()
    steps = clock.told()["steps"]
    # Processor time: a machine that stalls adds nothing to it.
    assert steps["inner"] == [pytest.approx(0.1, rel=0.2), 2, 0]
    assert steps["outer"] == [pytest.approx(0.01, abs=0.01), 1, 2]
    assert clock.told()["top"] == 1


def test_clock_counts_a_step_that_fails() -> None:
    clock = HookClock()

    def fail() -> None:
        spin(0.01)
        raise ValueError

    with pytest.raises(ValueError):
        clock.timed("failing", fail)()
    assert clock.told()["steps"]["failing"][1] == 1


def told(**changed: Any) -> dict[str, Any]:
    return {"steps": {}, "threads": {}, "top": 0, "inside_s": 1e-6, "around_s": 2e-6, **changed}


def test_parts_take_out_the_clock_and_add_up_to_the_whole() -> None:
    before = told(steps={"pack": [1.0, 100, 100]}, threads={"MainThread": 5.0}, top=100)
    after = told(
        # 1000 calls of `metrics` inside `pack`, which is itself called 1000 times and inside nothing.
        steps={"pack": [1.1, 1100, 1100], "metrics": [0.011, 1000, 0]},
        threads={"MainThread": 5.2, "native": 0.4, "metrics": 0.01},
        top=1100,
    )
    parts = cost.parts(before, after, 1000, 700.0)
    # 100 us, of which the clock takes one for the call, and two around that of `metrics`.
    assert parts["pack"] == pytest.approx(97)
    # 11 us without the clock's one, and 10 of the thread that sends them.
    assert parts["metrics"] == pytest.approx(20)
    assert parts["engine"] == pytest.approx(400)
    # The thread's 200 us without both steps, and without what the clock takes around the outer one.
    assert parts["rest"] == pytest.approx(200 - 100 - 11 - 2)
    assert sum(parts.values()) == pytest.approx(700)
    assert parts["unexplained"] == pytest.approx(700 - 97 - 20 - 400 - 87)


PROGRAM = """
import json, logging, sys
from ts.context import Context, RequestProcessor
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
sys.path.insert(0, sys.argv[1])
import tensors
metrics = MetricsCacheYamlImpl(sys.argv[2])
metrics.initialize_cache()
metrics.model_name = "identity"
context = Context("identity", sys.argv[1], {}, 4, None, "0.12.0", True, metrics, {})
handler = tensors.TensorsHandler()
handler.initialize(context)
context.request_ids = {0: "a", 1: "b"}
context.request_processor = [RequestProcessor({}) for _ in range(2)]
bodies = handler.handle([{"body": b'{"x": [[1.0]]}'}, {"body": b'{"x": [[2.0]]}'}], context)
sys.path.insert(0, sys.argv[4])
from load.bench.cost import told
from pathlib import Path
print("TOLD", json.dumps([[body.decode() for body in bodies], told(Path(sys.argv[3]))]))
"""


def test_archive_with_a_clock_answers_as_before_and_tells_every_step_of_classic_mode(tmp_path: Path) -> None:
    (tmp_path / "infer.py").write_text(INFER, encoding="utf-8")
    entry = {"identity": {"handler": "tensors", "version": "1", "weights": "infer.py"}}
    (tmp_path / "models.yaml").write_text(json.dumps(entry), encoding="utf-8")  # JSON is YAML
    listed = model("identity", tmp_path / "models.yaml")
    built = Recipe(listed, archive_format="no-archive", export_path=tmp_path / "store").build()
    path = tmp_path / "socket"
    cost.with_clock(built.path, path)
    manifest = json.loads((tmp_path / "store" / "identity-timed" / "MAR-INF" / "MANIFEST.json").read_text())
    assert manifest["model"]["modelName"] == "identity-timed"
    arguments = (
        str(tmp_path / "store" / "identity-timed"),
        str(ROOT / "deploy" / "metrics.yaml"),
        str(path),
        str(ROOT),
    )
    # A process of its own: the hooks are those of the whole process.
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("TOLD")]
    bodies, told = json.loads(line.removeprefix("TOLD"))
    assert [json.loads(body) for body in bodies] == [{"y": [[1.0]]}, {"y": [[2.0]]}]
    steps = {step: calls for step, (_, calls, _) in told["steps"].items() if calls}
    # What TorchServe itself calls, receive and send, is not part of this.
    assert set(steps) == {"unpack", "decode", "plan", "collate", "engine", "split", "pack", "metrics"}
    assert steps["unpack"] == 2


def test_cost_table_has_a_column_for_each_part_and_the_median_of_the_rounds() -> None:
    values = {part: [1.0, 3.0, 2.0] for part in cost.PARTS}
    columns, (row,) = cost.table({("mnist", "classic", 1): values})
    assert len(columns) == len(row) == len(cost.PARTS) + 2
    whole = len(cost.PARTS)
    assert row[:3] == ("mnist, classic, 1 client", f"{2 * whole} ({whole}..{3 * whole})", "2.0")
