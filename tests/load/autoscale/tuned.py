"""A tune that tests know the numbers of, and the one that the shipped rules are made of."""

from deploy.models import ROOT
from load.runs.tune import Advice, Curve, Point
from load.runs.tuned import Held, Tuned

KEDA = ROOT / "deploy" / "kubernetes" / "overlays" / "keda"
TUNE, RULES = KEDA / "tune.json", KEDA / "scaledobject.yaml"

# 5 ms an item and 20 ms a batch: 8 items take 60 ms, of which the engine has 45.
KNOWN = Tuned(
    model="m",
    created_at="2026-01-01T00:00:00+00:00",
    latency_threshold_ms=200,
    percentile=99,
    points=[Point(1, 25, 20), Point(8, 60, 45)],
    curve=Curve(5, 20),
    advice=Advice(batch_size=8, max_batch_delay_ms=1, job_queue_size=18),
    workers=1,
    held=Held(rate_per_s=100.5, mean_ms=60, p99_ms=190),
    ready_s=5,
)
