"""The options of a build, which its archive keeps for `serve` and `start`."""

from pathlib import Path

import pytest

from deploy.archives import arguments
from deploy.archives.arguments import make_recipe, parse_arguments, recall
from deploy.models import model
from handlers.archive_files import BUILD, Build
from handlers.errors import InvalidConfig

NAME = "mobilenet-v2"


def keep(*words: str) -> tuple[str, ...]:
    """Write an archive with the options of a command line, and return what it keeps of them."""
    kept = make_recipe(model(NAME), parse_arguments([NAME, *words]), None).options
    folder = Path("model_store", f"{NAME}.mar")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BUILD).write_text(Build("f1", "weights", False, {}, options=kept).to_json())
    return kept


def test_options_are_recalled_and_no_path_of_the_users_disk_is_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for path in (home / "int8", home / "random", tmp_path / "beside"):
        path.mkdir(parents=True)
    monkeypatch.setattr(arguments, "HOME", home)
    monkeypatch.setattr(arguments, "STORE", home / "model_store")
    monkeypatch.chdir(home)
    # A folder may have the name of a precision, or of a hub's model.
    for words in (("--weights", "google/vit"), ("--weights", "random"), ("--precision", "int8")):
        assert keep(*words) == words and recall(NAME) == [*words]
    assert keep("--weights", str(home / "int8")) == ("--weights", "./int8")
    assert recall(NAME) == ["--weights", str(home / "int8")]
    (home / "int8").rmdir()
    with pytest.raises(InvalidConfig, match="--weights int8, with which its archive was built, is missing; "):
        recall(NAME)
    assert not any(str(tmp_path) in word for word in keep("--weights", str(tmp_path / "beside")))
    with pytest.raises(InvalidConfig, match=r"--weights beside, with which .* is outside .*: give it again"):
        recall(NAME)
