import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.text.sentences import Document, cut, segments

# Text, language -> its sentences.
TEXTS = {
    "abbreviations": (
        "Dr. Smith came at 5 p.m. He left (e.g. for Paris). Why?",
        "en",
        ["Dr. Smith came at 5 p.m.", "He left (e.g. for Paris).", "Why?"],
    ),
    "a language's own": ("Das ist z.B. gut. Und das?", "de", ["Das ist z.B. gut.", "Und das?"]),
    "line breaks": ("A title\nOne more line. And\nhalf.\r\n\r\nEnd", "en", None),
    "chinese": ("你好。世界！好吗？", "zh", ["你好。", "世界！", "好吗？"]),
    "an unknown language": ("One here. Two there.", "xx", ["One here.", "Two there."]),
    "rules and bullets": ("One.\n---\n* * *\n- Two.", "en", ["One.", "Two."]),
    "markdown": (
        "# A title\n\n> - Quoted. Twice.\n* 3 * 4 = 12\n-5 degrees\n#tag here\n— Oui ! — Non.",
        "en",
        ["A title", "Quoted.", "Twice.", "3 * 4 = 12", "-5 degrees", "#tag here", "Oui !", "— Non."],
    ),
    "nothing but marks": ("  ***\n", "en", ["***"]),
    "one": ("  no end ", "en", ["no end"]),
}
TEXTS["line breaks"] = (*TEXTS["line breaks"][:2], ["A title", "One more line.", "And", "half.", "End"])


@pytest.mark.parametrize(("text", "language", "sentences"), TEXTS.values(), ids=TEXTS)
def test_text_is_cut_into_its_sentences(text: str, language: str, sentences: list[str]) -> None:
    document = cut(text, language)
    assert list(document.sentences) == sentences
    assert document.joined(document.sentences) == text


MARKS = (*".!?…。！؟।", '"', "“", "”", "(", ")", "\u200b", "\ufeff")
SPACES = ("\n", "\r\n", "\n\n", " ", "  ", "\t", "\u2028", "\u2029", "\x85", "\x1c", "\u00a0", "\u3000")
WORDS = ("Dr. ", "e.g.", "B. C.", "word", "Ünal", "İ", "😀", "中", "3.14", "1. ", "...")
PIECES = st.sampled_from((*MARKS, *SPACES, *WORDS))


@given(st.lists(PIECES, min_size=1, max_size=40).map("".join), st.sampled_from(["en", "kk", "zh", "de", "am", ""]))
@settings(max_examples=300, deadline=None)
def test_any_text_is_its_sentences_and_what_stands_between(text: str, language: str) -> None:
    document = cut(text, language)
    assert len(document.between) == len(document.sentences) + 1
    parts = [part for pair in zip(document.between, (*document.sentences, ""), strict=True) for part in pair]
    assert "".join(parts) == text
    if len(document.sentences) > 1:
        assert all([sentence.strip()] == sentence.splitlines() for sentence in document.sentences)
        assert not any(character.isalnum() for gap in document.between for character in gap)


def test_a_line_that_the_splitter_panics_on_stays_whole() -> None:
    """Kazakh's rules look for an initial by bytes, and find the middle of a character."""
    line = "B. C.\u2029. D."
    assert segments(line, "kk") == [line]
    assert cut(line, "kk").joined(cut(line, "kk").sentences) == line


@pytest.mark.parametrize(
    ("answers", "joined"),
    [
        (["Hello.", "World!", "All right?"], "Hello. World! All right?"),
        (["你好。", "世界！", "好吗？"], "你好。世界！好吗？"),
        (["Hello.", "", "Yes"], "Hello.Yes"),
    ],
)
def test_sentences_without_a_space_between_get_one_where_answers_want_it(answers: list[str], joined: str) -> None:
    assert cut("你好。世界！好吗？", "zh").joined(answers) == joined


def test_spaces_and_line_breaks_stay_where_they_were() -> None:
    document = cut("  One.  Two.\n\n\tThree!\r\n", "en")
    assert document == Document(("One.", "Two.", "Three!"), ("  ", "  ", "\n\n\t", "\r\n"))
    assert document.joined(["Un.", "Deux.", "Trois !"]) == "  Un.  Deux.\n\n\tTrois !\r\n"
