from statistics import mean

from load.bench import texts, translation, translation_mixed
from load.bench.__main__ import BENCHMARKS, OPTIONAL, parts
from load.bench.sentences import TUNING as SENTENCES
from load.bench.sentences import texts as mixed_texts
from load.bench.table import spread


def test_sentences_are_lognormal_about_40_tokens_in_the_mean_and_the_same_every_time() -> None:
    lengths = [len(text.split()) for text in mixed_texts()]
    assert len(lengths) == SENTENCES.count
    assert 34 < mean(lengths) < 42
    assert min(lengths) < 10
    assert 150 < max(lengths) <= 250
    assert mixed_texts() == mixed_texts()


def test_texts_table_compares_each_way_of_sending_with_each_way_in_process() -> None:
    rates = {"padded": [20.0], "arrival": [100.0], "sorted": [400.0], "single": [300.0], "lists": [360.0]}
    rows = texts.table({**rates, "language-id": [5000.0]})
    compared = [(spread(row.compared, 2), row.cells()[-1]) for row in rows]
    assert compared == [
        ("15.00", "ok"),
        ("3.00", "ok"),
        ("0.75", "short"),
        ("18.00", "ok"),
        ("3.60", "ok"),
        ("0.90", "ok"),
        ("5000.00", "ok"),
    ]


def test_texts_bodies_hold_every_text_once() -> None:
    assert len(texts.single_bodies()) == SENTENCES.count
    assert len(texts.list_bodies()) == SENTENCES.count / texts.TUNING.list_length


def test_translation_table_compares_with_stock_and_with_the_commit_before() -> None:
    kinds = ("", ", alone p50", ", processor", ", memory", ", archive", ", first answer")
    before = {f"before{kind}": [20.0] for kind in kinds}
    now = {f"now{kind}": [60.0 if not kind else 7.0] for kind in kinds}
    rows = translation.table({"fp32": [3.0], **before, **now})
    got = [(spread(row.compared, 2), row.cells()[-1]) for row in rows]
    assert got == [("20.00", "ok"), ("3.00", "ok"), ("0.35", "ok"), *[("0.35", "")] * 4]
    assert len(translation.table({"fp32": [3.0], "now": [60.0]})) == 1


def test_translation_sentences_are_mixed() -> None:
    lengths = [len(text.split()) for text in translation.sentences()]
    assert len(lengths) == translation.TUNING.clients
    assert max(lengths) > 5 * min(lengths)


def test_translation_mixed_table_compares_short_texts_with_before_and_the_slowest_with_and_without_a_runaway() -> None:
    now = {"now, short p50": [50.0], "now, alone": [400.0], "now, beside": [480.0]}
    before = {"before, short p50": [100.0], "before, alone": [800.0], "before, beside": [1600.0]}
    rows = translation_mixed.table({**now, **before})
    assert [(spread(row.compared, 2), row.cells()[-1]) for row in rows] == [
        ("0.50", "ok"),
        ("1.20", "ok"),
        ("2.00", ""),
    ]
    assert len(translation_mixed.table(now)) == 1


def test_parts_are_those_named_and_what_belongs_to_them() -> None:
    assert parts(["translation"]) == ["translation", "translation-mixed"]
    assert parts(["translation-mixed", "resnet"]) == ["resnet", "translation-mixed"]
    assert parts([]) == [name for name in BENCHMARKS if name not in OPTIONAL]
