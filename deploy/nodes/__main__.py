"""The former name of `python -m deploy.run restart`."""

import sys

sys.exit("python -m deploy.nodes restart is now python -m deploy.run restart")
