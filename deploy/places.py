"""Where programs and state are, and how the reader runs a command. Imports nothing, so that any process may use it."""

import os
from pathlib import Path

# The programs, examples and built-in configurations: a clone, or the folder of an installed package.
ROOT = Path(__file__).resolve().parent.parent
# The folder of all state: model_store, logs, .nodes, .gateway. The command `torchserve-batching` sets it, to --dir or
# the current folder; else it is the clone. Nothing is written into an installation.
PLACE = "TORCHSERVE_BATCHING_DIR"
HOME = Path(os.environ.get(PLACE) or (ROOT if (ROOT / "pyproject.toml").is_file() else ".")).resolve()
STORE = HOME / "model_store"
# How the reader runs these commands.
ARCHIVE, REGISTER = "torchserve-batching archive", "torchserve-batching register"
START, STOP, WITH_CONFIG = (
    ("make serve", "make stop", "CONFIG=")
    if HOME == ROOT
    else ("torchserve-batching start", "torchserve-batching stop", "--config ")
)
INSTALL_INT8 = "deploy/extras/environment.sh int8" if HOME == ROOT else "pip install 'torchserve-batching[int8]'"
EXAMPLES = ROOT / "examples"  # the photographs and sentences of comparisons, too, whatever the list
# The user's own list in the folder of the state, or else the examples.
OWN_LIST = HOME / "models.yaml"
MODEL_LIST = OWN_LIST if OWN_LIST.is_file() else EXAMPLES / "models.yaml"
MINE = Path("my/models.yaml") if HOME == ROOT else OWN_LIST  # the list of moved archives, from the current folder
