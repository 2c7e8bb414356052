"""The former name of `python -m deploy.run drain`."""

import sys

sys.exit("python -m deploy.drain is now python -m deploy.run drain")
