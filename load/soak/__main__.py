"""Runs `make soak`: mixed load for minutes, misbehaving clients, killed workers; a table of what was lost or crossed.

    python -m load.soak --minutes 10 --mode both --seed 1 --out soak.json

Progress goes to stderr, the table to stdout. Exit codes: 0 nothing was unanswered, crossed or wrong, and nothing grew;
1 something was, or it could not be run; 2 the command line is wrong; 130 Ctrl-C ended it. It ends in any case: `Plan`
says after how many seconds.
"""

import argparse
import json
import signal
import sys
from pathlib import Path
from types import FrameType

from deploy.archive import ArchiverFailed
from deploy.server import ServerError
from deploy.sources import WeightsUnavailable
from load.errors import LoadError
from load.soak.models import MODES
from load.soak.report import as_json, findings, table
from load.soak.run import Plan, run
from torchserve_client.management import ManagementError

INTERRUPTED, TERMINATED = 130, 143
# An hour and a day.
MOST_MINUTES = 25 * 60


class OutOfTime(SystemExit):
    """The hard end has come; of the exceptions that asyncio lets out of a task and nobody else catches."""


def main(arguments: list[str]) -> int:
    """Run and print.

    Args:
        arguments: the command line.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(arguments)
    plan = Plan(options.mode, options.minutes, options.seed)
    # An end from outside unwinds like any other, so that what was started is stopped.
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(round(plan.hard_end_s))
    try:
        outcome = run(plan)
    except KeyboardInterrupt:
        print("soak: interrupted; its server is stopped", file=sys.stderr)
        return INTERRUPTED
    except OutOfTime:
        print(f"soak: did not end within {plan.hard_end_s:.0f} s; its server is stopped", file=sys.stderr)
        return 1
    except (LoadError, ServerError, ManagementError, ArchiverFailed, WeightsUnavailable, OSError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    finally:
        signal.alarm(0)
    print(table(outcome), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(as_json(outcome), indent=1) + "\n", encoding="utf-8")
    return 1 if findings(outcome) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m load.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=_minutes, default=10.0, help="of load, kills included; default: 10")
    parser.add_argument(
        "--mode", choices=list(MODES), default="both", help="of the models; default: both, side by side"
    )
    parser.add_argument("--seed", type=int, default=1, help="decides on inputs and arrivals; default: 1")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep everything as JSON too")
    return parser


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes <= MOST_MINUTES:
        raise argparse.ArgumentTypeError(f"must be more than 0 and at most {MOST_MINUTES}")
    return minutes


def _terminate(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    sys.exit(TERMINATED)


def _out_of_time(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise OutOfTime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
