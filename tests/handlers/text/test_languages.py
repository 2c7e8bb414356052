"""Codes of languages, compared with the tables of transformers and fastText."""

import fasttext
import pytest
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as M2M100
from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES as MBART
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB

from deploy.archives.sources import source
from deploy.models import model
from handlers.text.languages import ModelCodes, shorten_code

FAMILIES = {"m2m100": M2M100["m2m100"], "nllb": NLLB, "mbart": MBART}

# Label -> the code of each family, in the order of FAMILIES; None where it lacks the language.
CODES = {
    "fr": ("fr", "fra_Latn", "fr_XX"),
    "arz": ("ar", "arz_Arab", "ar_AR"),
    "azb": (None, "azb_Arab", None),
    "fa": ("fa", "pes_Arab", "fa_IR"),
    "nn": ("no", "nno_Latn", None),
    "sh": ("hr", "hrv_Latn", "hr_HR"),
    "sq": ("sq", "als_Latn", None),
    # Alemannic of Wikipedia, which is not als_Latn, Albanian.
    "als": (None, None, None),
    "zh": ("zh", "zho_Hans", "zh_CN"),
    "yue": ("zh", "yue_Hant", "zh_CN"),
    # Labels of a detector with NLLB's codes.
    "zho_Hant": ("zh", "zho_Hant", "zh_CN"),
    "nso_Latn": ("ns", "nso_Latn", None),
}


@pytest.mark.parametrize("label", CODES)
def test_code_of_a_language_is_each_family_s_own(label: str) -> None:
    assert tuple(ModelCodes(codes).find(label) for codes in FAMILIES.values()) == CODES[label]


def test_short_code_is_that_of_iso_639_1() -> None:
    assert [shorten_code(code) for code in ("fr_XX", "cmn_Hant", "ns", "ceb", "nob")] == [
        "fr",
        "zh",
        "nso",
        "ceb",
        "no",
    ]


# The languages that lid.176 has no label for; all others of a family are found.
UNKNOWN = {
    "m2m100": "ff ha ig lg ln ns ss tn wo xh zu",
    "mbart": "xh_ZA",
}


def test_every_language_that_the_detector_has_is_found() -> None:
    path = source(model("language-id"), None).location
    names, _ = fasttext.load_model(path).predict("a", k=500, threshold=-1.0)
    labels = {name.removeprefix("__label__") for name in names}
    assert len(labels) == 176
    for family, unknown in UNKNOWN.items():
        codes = ModelCodes(FAMILIES[family])
        assert set(FAMILIES[family]) - {codes.find(label) for label in labels} == set(unknown.split())
    codes = ModelCodes(NLLB)
    assert [codes.find(code) for code in NLLB] == NLLB
    found = [code for label in labels if (code := codes.find(label))]
    assert len(found) >= 115
    # zh and wuu, hr and sh.
    assert {code for code in found if found.count(code) > 1} == {"zho_Hans", "hrv_Latn"}
