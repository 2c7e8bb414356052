"""Command lines of run, gateway and container."""

from collections.abc import Callable

import pytest

from deploy.container import __main__ as container
from deploy.gateway import __main__ as gateway
from deploy.run import __main__ as run


@pytest.mark.parametrize(
    ("main", "arguments", "new"),
    [
        (run.main, ["start", "--nodes", "4"], "--node-count"),
        (gateway.main, ["start", "--nodes=nodes.json"], "--nodes-file"),
        (gateway.main, ["start", "--run", "folder"], "--state-dir"),
        (container.main, ["--run", "folder"], "--state-dir"),
    ],
)
def test_renamed_option_is_an_error_that_names_the_new_one(
    main: Callable[[list[str]], int], arguments: list[str], new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert f"was renamed: use {new}\n" in capsys.readouterr().err
