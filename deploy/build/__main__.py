"""`python -m deploy.build`, which archive.sh calls."""

import sys

from deploy.build.archive import main

sys.exit(main(sys.argv[1:]))
