import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.text.documents import segment_line, split_text

MARKDOWN = "# A title\n\n> - Quoted. Twice.\n* 3 * 4 = 12\n-5 degrees\n#tag here\n— Oui ! — Non."
QUOTED = ["A title", "Quoted.", "Twice.", "3 * 4 = 12", "-5 degrees", "#tag here", "Oui !", "— Non."]


@pytest.mark.parametrize(
    ("text", "language", "sentences"),
    [
        (
            "Dr. Smith came at 5 p.m. He left (e.g. for Paris). Why?",
            "en",
            ["Dr. Smith came at 5 p.m.", "He left (e.g. for Paris).", "Why?"],
        ),
        ("Das ist z.B. gut. Und das?", "de", ["Das ist z.B. gut.", "Und das?"]),
        (
            "A title\nOne more line. And\nhalf.\r\n\r\nEnd",
            "en",
            ["A title", "One more line.", "And", "half.", "End"],
        ),
        ("你好。世界！好吗？", "zh", ["你好。", "世界！", "好吗？"]),
        ("One here. Two there.", "xx", ["One here.", "Two there."]),
        ("One.\n---\n* * *\n- Two.", "en", ["One.", "Two."]),
        (MARKDOWN, "en", QUOTED),
        ("  ***\n", "en", ["***"]),
        ("  no end ", "en", ["no end"]),
    ],
)
def test_text_is_cut_into_its_sentences(text: str, language: str, sentences: list[str]) -> None:
    document = split_text(text, language)
    assert list(document.sentences) == sentences
    assert document.join_answers(document.sentences) == text


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


@pytest.mark.parametrize(
    ("text", "answers", "joined"),
    [
        ("你好。世界！好吗？", ["Hello.", "World!", "All right?"], "Hello. World! All right?"),
        ("你好。世界！好吗？", ["你好。", "世界！", "好吗？"], "你好。世界！好吗？"),
        ("你好。世界！好吗？", ["Hello.", "", "Yes"], "Hello.Yes"),
        ("你好。世界！好吗？", ["Hello.", "世界！", "Yes"], "Hello.世界！Yes"),
        ("  One.  Two.\n\n\tThree!\r\n", ["Un.", "Deux.", "Trois !"], "  Un.  Deux.\n\n\tTrois !\r\n"),
    ],
)
def test_answers_stand_where_their_sentences_stood(text: str, answers: list[str], joined: str) -> None:
    assert split_text(text, "zh" if text[0] == "你" else "en").join_answers(answers) == joined
