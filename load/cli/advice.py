"""Commands that say what to set: `tune`, of a model's registration; `autoscale`, of its replicas."""

import argparse
import math
import sys
from dataclasses import fields
from datetime import UTC, datetime

from rich.console import Console

from load.autoscale import scaled_object, study
from load.autoscale.rules import Wishes, derive
from load.autoscale.study import Plan
from load.cli.arguments import DEFAULTS
from load.cli.files import check_outputs, write
from load.cli.progress import Progress
from load.cli.sessions import served_for
from load.generate import inputs
from load.generate.inputs import Inputs
from load.generate.windows import Duration
from load.measure.summary import TUNING as VALIDITY
from load.measure.summary import Summary
from load.report import replicas
from load.runs.search import Found
from load.runs.session import Session
from load.runs.tune import Tuner, advise
from load.runs.tuned import Held, Tuned

DONE = 0
# Wishes of autoscale -> the options that say them.
OPTIONS = {
    "min_replicas": "--min-replicas",
    "max_replicas": "--max-replicas",
    "cold_start_s": "--cold-start",
    "is_adaptive": "--adaptive",
    "deployment": "--deployment",
    "prometheus": "--prometheus",
}


def tune(options: argparse.Namespace) -> int:
    """Print what to register a model with, and store what that was made of."""
    check_outputs([options.out])
    session = Session(
        inputs=Inputs(inputs.read(options.input, options.content_type), options.seed),
        until=Duration(options.duration),
        warm_up_s=DEFAULTS.warm_up_s,
        latency_threshold_ms=options.latency_threshold_ms,
        max_lag_ms=VALIDITY.max_lag_ms,
        display=Progress(Console(stderr=True)),
    )
    tuner = Tuner(session, served_for(options, options.model), options.archive, print)
    sizes = [2**power for power in range(options.max_batch_size.bit_length()) if 2**power <= options.max_batch_size]
    curve, points = tuner.curve(sizes)
    print(f"time of a batch of n: {curve.per_item_ms:.2f} ms * n + {curve.per_batch_ms:.2f} ms")
    advice = advise(curve, options.latency_threshold_ms, options.max_batch_size)
    workers, found = tuner.best(advice, options.max_workers, options.percentile)
    wanted = f"{options.percentile:g} % of requests within {options.latency_threshold_ms:g} ms"
    print(
        f"\nbatch_size {advice.batch_size}, max_batch_delay {advice.max_batch_delay_ms}, "
        f"job_queue_size {advice.job_queue_size}, workers {workers}\n"
        f'curl -X POST "{options.management_url}/models?url={tuner.archive}&batch_size={advice.batch_size}'
        f'&max_batch_delay={advice.max_batch_delay_ms}&initial_workers={workers}"\n'
        f"job_queue_size={advice.job_queue_size}   # config.properties, or jobQueueSize in model-config.yaml"
    )
    if found.load is None:
        print(f"but not even the lowest rate that was tried has {wanted}: p99 {_p99(found.measured)}")
    else:
        print(f"holds {found.load:.1f} requests/s with {wanted}: p99 {_p99(found.measured)}")
    if options.out is not None:
        Tuned(
            model=options.model,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            latency_threshold_ms=options.latency_threshold_ms,
            percentile=options.percentile,
            points=points,
            curve=curve,
            advice=advice,
            workers=workers,
            held=_held(found),
            ready_s=round(tuner.ready_s, 1),
        ).save(options.out)
    return DONE


def _held(found: Found[Summary]) -> Held | None:
    if found.load is None:
        return None
    latencies = found.measured.latencies.statistics_ms()
    return Held(found.load, latencies["mean"], latencies["p99"])


def _p99(summary: Summary) -> str:
    return f"{summary.latency_ms(99):.1f} ms" if summary.completed else "of nothing"


def autoscale(options: argparse.Namespace) -> int:
    """Write KEDA's rules for the replicas of a model that was tuned."""
    wishes = Wishes(
        min_replicas=options.min_replicas,
        max_replicas=options.max_replicas,
        cold_start_s=options.cold_start,
        is_adaptive=options.adaptive,
        deployment=options.deployment,
        prometheus=options.prometheus,
    )
    check_outputs([options.out, options.simulate])
    tuned = Tuned.read(options.tune)
    text = scaled_object.render(derive(tuned, wishes), _typed(options, wishes))
    if options.out is not None:
        write(options.out, text)
    elif options.simulate is None and not options.sweep:
        print(text, end="")
    if options.simulate is None and not options.sweep:
        return DONE
    plan = Plan(replicas_at_peak=options.peak, hours=options.hours, seed=options.seed)
    scene = study.Scene.of(tuned, wishes, plan)
    if options.simulate is not None:
        # The rules are those of the YAML, as KEDA would read it.
        day = study.study(scene, scaled_object.read(text))
        write(options.simulate, replicas.page(day, tuned.model))
        print(replicas.table(day.rows, day.peak))
    if options.sweep:
        tried = study.sweep(tuned, wishes, scene, say=lambda line: print(f"load: {line}", file=sys.stderr))
        rows = [(f"{name} {value:g}", outcome) for name, value, outcome in tried]
        print(replicas.table(rows, scene.static(math.ceil(plan.replicas_at_peak))))
    return DONE


def _typed(options: argparse.Namespace, wishes: Wishes) -> str:
    """The command as a reader would type it again, without what is as it is by default."""
    words = ["python -m load autoscale", options.tune.as_posix()]
    for each in fields(wishes):
        value = getattr(wishes, each.name)
        if value != each.default:
            words += [OPTIONS[each.name]] if value is True else [OPTIONS[each.name], f"{value}"]
    return " ".join(words + (["--out", options.out.as_posix()] if options.out else []))
