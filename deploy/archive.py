"""The former name of `python -m deploy.build`."""

import sys

sys.exit("python -m deploy.archive is now python -m deploy.build, or ./archive.sh")
