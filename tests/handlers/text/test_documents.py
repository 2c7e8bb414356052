import fasttext
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as M2M100
from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES as MBART
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB

from deploy.archives.sources import source
from deploy.models import model
from handlers.text.documents import DividedText, segment_line, split_text
from handlers.text.languages import ModelCodes, shorten_code
from tests.tables import table

ABBREVIATED = ["Dr. Smith came at 5 p.m.", "He left (e.g. for Paris).", "Why?"]
MARKDOWN = "# A title\n\n> - Quoted. Twice.\n* 3 * 4 = 12\n-5 degrees\n#tag here\n— Oui ! — Non."
QUOTED = ["A title", "Quoted.", "Twice.", "3 * 4 = 12", "-5 degrees", "#tag here", "Oui !", "— Non."]


@table(
    (" ".join(ABBREVIATED), "en", ABBREVIATED),
    ("Das ist z.B. gut. Und das?", "de", ["Das ist z.B. gut.", "Und das?"]),
    ("A title\nOne more line. And\nhalf.\r\n\r\nEnd", "en", ["A title", "One more line.", "And", "half.", "End"]),
    ("你好。世界！好吗？", "zh", ["你好。", "世界！", "好吗？"]),
    ("One here. Two there.", "xx", ["One here.", "Two there."]),
    *(("One.\n---\n* * *\n- Two.", "en", ["One.", "Two."]), (MARKDOWN, "en", QUOTED), ("  ***\n", "en", ["***"])),
    ("  no end ", "en", ["no end"]),
)
def test_text_is_cut_into_its_sentences(text: str, language: str, sentences: list[str]) -> None:
    document = split_text(text, language)
    assert (list(document.sentences), document.join_answers(document.sentences)) == (sentences, text)


MARKS = (*".!?…。！؟।", '"', "“", "”", "(", ")", "\u200b", "\ufeff")
SPACES = ("\n", "\r\n", "\n\n", " ", "  ", "\t", "\u2028", "\u2029", "\x85", "\x1c", "\u00a0", "\u3000")
WORDS = ("Dr. ", "e.g.", "B. C.", "word", "Ünal", "İ", "😀", "中", "3.14", "1. ", "...")
PIECES = st.sampled_from((*MARKS, *SPACES, *WORDS))


@given(st.lists(PIECES, min_size=1, max_size=40).map("".join), st.sampled_from(["en", "kk", "zh", "de", "am", ""]))
@settings(max_examples=150)
def test_any_text_is_its_sentences_and_what_stands_between(text: str, language: str) -> None:
    document = split_text(text, language)
    assert len(document.between) == len(document.sentences) + 1
    parts = [part for pair in zip(document.between, (*document.sentences, ""), strict=True) for part in pair]
    assert "".join(parts) == text
    if len(document.sentences) > 1:
        assert all([sentence.strip()] == sentence.splitlines() for sentence in document.sentences)
        assert not any(character.isalnum() for gap in document.between for character in gap)


def test_a_line_that_the_splitter_panics_on_stays_whole() -> None:
    """Kazakh's rules look for an initial by bytes, and find the middle of a character."""
    line = "B. C.\u2029. D."
    assert segment_line(line, "kk") == [line]


@table(
    ("你好。世界！好吗？", ["Hello.", "World!", "All right?"], "Hello. World! All right?"),
    ("你好。世界！好吗？", ["你好。", "世界！", "好吗？"], "你好。世界！好吗？"),
    ("你好。世界！好吗？", ["Hello.", "", "Yes"], "Hello.Yes"),
    ("你好。世界！好吗？", ["Hello.", "世界！", "Yes"], "Hello.世界！Yes"),
    ("  One.  Two.\n\n\tThree!\r\n", ["Un.", "Deux.", "Trois !"], "  Un.  Deux.\n\n\tTrois !\r\n"),
)
def test_answers_stand_where_their_sentences_stood(text: str, answers: list[str], joined: str) -> None:
    assert split_text(text, "zh" if text[0] == "你" else "en").join_answers(answers) == joined


# Codes of languages, compared with the tables of transformers and fastText.
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
    "zho_Hant": ("zh", "zho_Hant", "zh_CN"),
    "nso_Latn": ("ns", "nso_Latn", None),
}


@pytest.mark.parametrize("label", CODES)
def test_code_of_a_language_is_each_family_s_own(label: str) -> None:
    assert tuple(ModelCodes(codes).find(label) for codes in FAMILIES.values()) == CODES[label]


# The languages that lid.176 has no label for; all others of a family are found.
UNKNOWN = {"m2m100": "ff ha ig lg ln ns ss tn wo xh zu", "mbart": "xh_ZA"}


def test_every_language_that_the_detector_has_is_found() -> None:
    names, _ = fasttext.load_model(source(model("language-id"), None).location).predict("a", k=500, threshold=-1.0)
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
    short = {"fr_XX": "fr", "cmn_Hant": "zh", "ns": "nso", "ceb": "ceb", "nob": "no"}
    assert [*map(shorten_code, short)] == [*short.values()]


def test_each_sentence_has_the_prefix_of_its_target_and_the_options_of_its_text() -> None:
    text = DividedText(split_text("One. Two."), {"num_beams": 2}, ">>fra<< ", {"src_lang": "en"})
    payloads = text.payloads()
    assert [(each.value, each.options) for each in payloads] == [
        (">>fra<< One.", {"num_beams": 2}), (">>fra<< Two.", {"num_beams": 2}),
    ]  # fmt: skip
    results = [{"translation_text": each} for each in ("Un.", "Deux.")]
    assert text.result(results) == {"translation_text": "Un. Deux.", "src_lang": "en"}
