from pathlib import Path

from deploy.hub import checkpoint
from deploy.models import model
from deploy.sources import source

SERVED = {"config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"}
LEFT_OUT = {"README.md", "pytorch_model.bin", "optimizer.pt"}


def test_checkpoint_of_a_folder_links_what_is_served_and_copies_nothing(tmp_path: Path) -> None:
    for name in SERVED | LEFT_OUT:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    entry = model("sentence-embedding")
    with checkpoint(entry, source(entry, str(tmp_path))) as folder:
        files = [path for path in folder.rglob("*") if not path.is_dir()]
        assert {path.relative_to(folder).as_posix() for path in files} == SERVED
        assert all(path.is_symlink() and path.read_text() == path.relative_to(folder).as_posix() for path in files)
