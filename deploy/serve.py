"""The former name of `python -m deploy.run`."""

import sys

sys.exit("python -m deploy.serve is now python -m deploy.run: start, run, stop, drain, restart")
