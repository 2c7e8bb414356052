"""The installed distribution: one command, and `torchserve_batching.testing` for tests of your own tasks.

Importing it puts `handlers`, `deploy`, `load` and `torchserve_client` first on sys.path: in an installation they are
below this package, in a clone beside it.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
ROOT = _HERE if (_HERE / "handlers").is_dir() else _HERE.parent

for _folder in (ROOT / "client", ROOT):
    if _folder.is_dir() and str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))
