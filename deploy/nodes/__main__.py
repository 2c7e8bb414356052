"""`python -m deploy.nodes restart`; see deploy/restart.py."""

import sys

from deploy.restart import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
