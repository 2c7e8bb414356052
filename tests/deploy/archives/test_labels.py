"""Files beside a network of torchvision that may name its classes, which only index_to_name.json does."""

from pathlib import Path
from typing import Any

import pytest

from deploy.archives.labels import check_labels
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig
from tests.tables import table


@table(
    *((("labels.txt", text), True) for text in ("rose\ntulip\n", "0,rose\n1,day lily\n", "n0144 tench\nn0145 shark\n")),
    (("class_weights.csv", "rose,0.5\ntulip,1.5\n"), False),
    (("classification_report.txt", "   precision  recall  f1-score\n\nrose   0.90   0.81   0.85\n"), False),
    (("synset_words.txt", "name\n" * 1000), False),
)
def test_only_what_looks_like_names_is_rejected(
    file: tuple[str, str], is_rejected: bool, tmp_path: Path, capsys: Any
) -> None:
    model = ModelEntry("own", "image_classification", "1", folder=tmp_path)
    (tmp_path / file[0]).write_text(file[1])
    if is_rejected:
        with pytest.raises(InvalidConfig, match=f"^own: {file[0]} is not read; name the classes in "):
            check_labels(model)
    else:
        check_labels(model)
        assert f"own: {file[0]} is not read; " in capsys.readouterr().err
