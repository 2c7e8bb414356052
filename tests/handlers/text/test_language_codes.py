"""Codes of languages, held against what transformers and fastText have; no second table."""

import fasttext
import pytest
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as M2M100
from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES as MBART
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB

from deploy.models import model
from deploy.sources import source
from handlers.text.language_codes import ModelCodes, short_code

# The text languages of facebook/hf-seamless-m4t-medium: `text_decoder_lang_to_code_id` of its generation_config.json.
SEAMLESS = (
    "afr amh arb ary arz asm azj bel ben bos bul cat ceb ces ckb cmn cmn_Hant cym dan deu ell eng est "
    "eus fin fra fuv gaz gle glg guj heb hin hrv hun hye ibo ind isl ita jav jpn kan kat kaz khk khm kir "
    "kor lao lit lug luo lvs mai mal mar mkd mlt mni mya nld nno nob npi nya ory pan pbt pes pol por ron "
    "rus sat slk slv sna snd som spa srp swe swh tam tel tgk tgl tha tur ukr urd uzn vie yor yue zlm zul"
)
FAMILIES = {"m2m100": M2M100["m2m100"], "nllb": NLLB, "mbart": MBART, "seamless": SEAMLESS.split()}

# Label -> the code of each family, in the order of FAMILIES; None where it lacks the language.
CODES = {
    "fr": ("fr", "fra_Latn", "fr_XX", "fra"),
    "arz": ("ar", "arz_Arab", "ar_AR", "arz"),
    "azb": (None, "azb_Arab", None, None),
    "fa": ("fa", "pes_Arab", "fa_IR", "pes"),
    "mn": ("mn", "khk_Cyrl", "mn_MN", "khk"),
    "no": ("no", "nob_Latn", None, "nob"),
    "nn": ("no", "nno_Latn", None, "nno"),
    "sh": ("hr", "hrv_Latn", "hr_HR", "hrv"),
    "sq": ("sq", "als_Latn", None, None),
    # Alemannic of Wikipedia, which is not als_Latn, Albanian.
    "als": (None, None, None, None),
    "bh": (None, "bho_Deva", None, None),
    "zh": ("zh", "zho_Hans", "zh_CN", "cmn"),
    "yue": ("zh", "yue_Hant", "zh_CN", "yue"),
    # Labels of a detector with NLLB's codes.
    "zho_Hant": ("zh", "zho_Hant", "zh_CN", "cmn"),
    "nso_Latn": ("ns", "nso_Latn", None, None),
}


@pytest.mark.parametrize("label", CODES)
def test_code_of_a_language_is_each_family_s_own(label: str) -> None:
    assert tuple(ModelCodes(codes).find(label) for codes in FAMILIES.values()) == CODES[label]


# The languages that lid.176 has no label for; all others of a family are found.
UNKNOWN = {
    "m2m100": "ff ha ig lg ln ns ss tn wo xh zu",
    "mbart": "xh_ZA",
    "seamless": "ary cmn_Hant fuv gaz ibo lug luo mni nya sat sna zul",
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


def test_short_code_is_that_of_iso_639_1() -> None:
    codes = ("fr_XX", "cmn_Hant", "ns", "ceb", "nob")
    assert [short_code(code) for code in codes] == ["fr", "zh", "nso", "ceb", "no"]
