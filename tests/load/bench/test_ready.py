"""A worker's own seconds, read out of its log."""

from load.bench.ready import parts

LOG = """
[WARN ] W-9000-a_1.0-stdout MODEL_LOG - Loaded a: openvino cpu bf16 (seconds: imports 1.90, files 0.20)
[WARN ] W-9000-b_1.0-stdout MODEL_LOG - Loaded b: openvino cpu bf16 (seconds: imports 3.00)
[WARN ] W-9000-a_1.0-stdout MODEL_LOG - Loaded a: function x (seconds: imports 2.10, trial 0.30)
"""


def test_parts_are_those_of_the_models_last_start() -> None:
    assert parts(LOG, "a") == {"imports": 2.1, "trial": 0.3}
    assert parts(LOG, "b") == {"imports": 3.0}
    assert parts(LOG, "c") == {}
