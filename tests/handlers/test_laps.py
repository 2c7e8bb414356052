"""What a worker's start takes, part by part."""

import time
from pathlib import Path

from handlers.laps import Laps, now_s


def test_laps_tell_each_part_from_the_end_of_the_one_before() -> None:
    laps = Laps(now_s() - 3)
    laps.lap("imports")
    time.sleep(0.02)
    laps.lap("files")
    (first, imports), (second, files) = (part.split() for part in str(laps).split(", "))
    assert (first, second) == ("imports", "files")
    assert float(imports) >= 3
    assert 0.02 <= float(files) < 3


def test_laps_of_a_process_begin_when_it_did_and_now_where_the_kernel_does_not_tell(tmp_path: Path) -> None:
    of_this, unknown = Laps.of_process(), Laps.of_process(tmp_path / "none")
    of_this.lap("all")
    unknown.lap("all")
    # This test has been collected and imported before it ran.
    assert float(str(of_this).split()[1]) > float(str(unknown).split()[1])
    broken = tmp_path / "stat"
    broken.write_text("1 (a b) c) S")
    assert str(Laps.of_process(broken)) == ""
