"""Codes of languages, held against what transformers and fastText have; no second table."""

import fasttext
import pytest
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as M2M100
from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES as MBART
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB

from deploy.models import model
from deploy.sources import source
from handlers.text.language_codes import ModelCodes, key_of, short_code

# The text languages of facebook/hf-seamless-m4t-medium: `text_decoder_lang_to_code_id` of its generation_config.json.
SEAMLESS = (
    "afr amh arb ary arz asm azj bel ben bos bul cat ceb ces ckb cmn cmn_Hant cym dan deu ell eng est "
    "eus fin fra fuv gaz gle glg guj heb hin hrv hun hye ibo ind isl ita jav jpn kan kat kaz khk khm kir "
    "kor lao lit lug luo lvs mai mal mar mkd mlt mni mya nld nno nob npi nya ory pan pbt pes pol por ron "
    "rus sat slk slv sna snd som spa srp swe swh tam tel tgk tgl tha tur ukr urd uzn vie yor yue zlm zul"
)
FAMILIES = {"m2m100": M2M100["m2m100"], "nllb": NLLB, "mbart": MBART, "seamless": SEAMLESS.split()}


@pytest.fixture(scope="module")
def labels() -> set[str]:
    """Every label of lid.176."""
    path = source(model("language-id"), None).location
    names, _ = fasttext.load_model(path).predict("a", k=500, threshold=-1.0)
    assert len(names) == 176
    return {name.removeprefix("__label__") for name in names}


# Label -> the code of each family, in the order of FAMILIES; None where it lacks the language.
CODES = {
    "en": ("en", "eng_Latn", "en_XX", "eng"),
    "fr": ("fr", "fra_Latn", "fr_XX", "fra"),
    "ar": ("ar", "arb_Arab", "ar_AR", "arb"),
    "arz": ("ar", "arz_Arab", "ar_AR", "arz"),
    "az": ("az", "azj_Latn", "az_AZ", "azj"),
    "azb": (None, "azb_Arab", None, None),
    "et": ("et", "est_Latn", "et_EE", "est"),
    "fa": ("fa", "pes_Arab", "fa_IR", "pes"),
    "ku": (None, "kmr_Latn", None, None),
    "ckb": (None, "ckb_Arab", None, "ckb"),
    "lv": ("lv", "lvs_Latn", "lv_LV", "lvs"),
    "mg": ("mg", "plt_Latn", None, None),
    "mn": ("mn", "khk_Cyrl", "mn_MN", "khk"),
    "ms": ("ms", "zsm_Latn", None, "zlm"),
    "ne": ("ne", "npi_Deva", "ne_NP", "npi"),
    "no": ("no", "nob_Latn", None, "nob"),
    "nn": ("no", "nno_Latn", None, "nno"),
    "or": ("or", "ory_Orya", None, "ory"),
    "ps": ("ps", "pbt_Arab", "ps_AF", "pbt"),
    "sh": ("hr", "hrv_Latn", "hr_HR", "hrv"),
    "sq": ("sq", "als_Latn", None, None),
    # Alemannic of Wikipedia, which is not als_Latn, Albanian.
    "als": (None, None, None, None),
    "bh": (None, "bho_Deva", None, None),
    "sw": ("sw", "swh_Latn", "sw_KE", "swh"),
    "tl": ("tl", "tgl_Latn", "tl_XX", "tgl"),
    "uz": ("uz", "uzn_Latn", None, "uzn"),
    "yi": ("yi", "ydd_Hebr", None, None),
    "zh": ("zh", "zho_Hans", "zh_CN", "cmn"),
    "wuu": ("zh", "zho_Hans", "zh_CN", "cmn"),
    "yue": ("zh", "yue_Hant", "zh_CN", "yue"),
    "la": (None, None, None, None),
    # Labels of a detector with NLLB's codes.
    "fra_Latn": ("fr", "fra_Latn", "fr_XX", "fra"),
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


@pytest.mark.parametrize("family", UNKNOWN)
def test_every_language_that_the_detector_has_is_found(family: str, labels: set[str]) -> None:
    codes = ModelCodes(FAMILIES[family])
    assert set(FAMILIES[family]) - {codes.find(label) for label in labels} == set(UNKNOWN[family].split())


def test_every_language_of_nllb_with_a_label_is_found_once(labels: set[str]) -> None:
    codes = ModelCodes(NLLB)
    found = {label: code for label in labels if (code := codes.find(label))}
    assert len(found) >= 115
    shared = {code for code in found.values() if list(found.values()).count(code) > 1}
    assert shared == {"zho_Hans", "hrv_Latn"}  # zh and wuu, hr and sh


def test_nllb_finds_each_of_its_own_codes() -> None:
    codes = ModelCodes(NLLB)
    assert [codes.find(code) for code in NLLB] == NLLB


@pytest.mark.parametrize(
    ("code", "key", "short"),
    [
        ("fr_XX", "fra", "fr"),
        ("cmn_Hant", "zho", "zh"),
        ("ns", "nso", "nso"),
        ("ceb", "ceb", "ceb"),
        ("nob", "nor", "no"),
    ],
)
def test_code_has_a_key_and_a_short_one(code: str, key: str, short: str) -> None:
    assert (key_of(code), short_code(code)) == (key, short)
