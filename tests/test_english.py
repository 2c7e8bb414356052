"""The phrases that CONTRIBUTING.md's rules of language exclude, searched in pages and in the text of Python files."""

import ast
import re
import subprocess
from collections.abc import Iterator

import pytest

from deploy.models import ROOT
from tests.pages import FENCE, PAGES, prose

# A kind of construction that readers stumbled over -> its form.
KINDS = {
    "an actor without a name": r"nobody|everybody|anybody|whoever|(?:gives?|given|giving|gave|gets?|got) back",
    "an actor in a clause": (
        r"who (?:sends|asks|has|calls|waits|comes|arrives|reads|needs|wants) [^.,;:]*?"
        r"(?: is| are| gets| waits| may| must)"
    ),
    "a denied noun": (
        r"that (?:is|are) (?-i:none)|is no valid|(?:is|are) no (?:number|text|list|name|path|image|tensor)s?"
    ),
    "a denied possession": r"(?:has|have|had) not(?!\s+\w)|(?:has|have|had) not (?:an?|the|its|this|that) \w+",
    "a dangling owner": r"of (?:its|his|their|one's|our|my|your) own(?!\s+\w)|one's own",
    "a dangling reference": r"likewise|as above|(?:says?|said|told) so|in the place of|held against",
    "an archaic word": r"anew|soonest|so often|for want of",
    "a status as a noun": r"(?:is|are|be|becomes?) an? [45]\d\d",
}
FORBIDDEN = re.compile(
    rf"\A\W*(?-i:What|Who|Whose) (?!went before)[a-z][^?!]*\Z|\b(?:{'|'.join(KINDS.values())})\b", re.IGNORECASE
)
CANDIDATE = re.compile(rf"\b(?:(?-i:What|Who|Whose) |{'|'.join(KINDS.values())})", re.IGNORECASE)
# Between the parts of a text that is written on several lines.
JOINT = re.compile(r"""["']\s*\n\s*[fr]*["']""")
# Kinds that only pages avoid -> their form.
PAGE_KINDS = {
    "a request that is refused, except in names": r"\brefus(?!alShare|als by reason)\w+",
    "a status that a request gets": r"\b(?:gets?|got) (?:an? )?[45]\d\d\b",
    "a product behind its noun": (
        r"\b(?:archive|classifier|handler|model|network|pipeline|server)s? of (?:stock )?"
        r"(?:torchvision|transformers|TorchServe|Triton)\b"
    ),
    "a synonym of response": r"\brepl(?:y|ies|ied)\b",
}
# A sentence outside tables and reference has at most one semicolon.
SEMICOLONS = re.compile(r"(?:;(?:[^.:;\n]|\n(?! *[-\n]))*){2}")
TABLE = re.compile(r"^\|.*$", re.MULTILINE)
# load's outcome is called "refused"; the others have old entries or generated lists.
LOOSE = {"CHANGELOG.md", "load/README.md", "docs/reference/settings.md", "docs/reference/model-families.md"}
# A string of fewer words is not a message; code, quotations and the targets of links are not ours.
MESSAGE = re.compile(r"\w+ +\w+ +\w+")
QUOTED = re.compile(r"`[^`]*`|\]\([^)]*\)|\"[^\"\n]*\"")
GENERATED = re.compile(r"<!-- fields.*?<!-- end -->", re.DOTALL)
# Old entries, sentences that are inputs of models, and this file.
EXCEPTIONS = {
    "CHANGELOG.md",
    "tests/handlers/tasks/test_translation.py",
    "tests/test_english.py",
    "tests/tiny_models.py",
    "tests/tiny_seq2seq.py",
}


def find_texts(name: str) -> Iterator[tuple[int, str]]:
    """Yield each text of a file that a person reads, with its first line."""
    content = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".md"):
        yield 1, FENCE.sub(lambda block: "\n" * block[0].count("\n"), content)
        return
    # Few files have such words anywhere, and it takes seconds to parse all of them.
    if not CANDIDATE.search(JOINT.sub("", content)):
        return
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and MESSAGE.search(node.value):
            yield node.lineno, node.value
    # What follows this sign within a string is a text as well.
    yield from ((number, line[line.index("#") :]) for number, line in enumerate(content.splitlines(), 1) if "#" in line)


def test_pages_and_code_contain_no_forbidden_phrase() -> None:
    listed = subprocess.run(["git", "ls-files", "*.md", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = [
        f"{name}:{line + text.count(chr(10), 0, hit.start())}: {hit[0]}"
        for name in listed.stdout.split()
        if name not in EXCEPTIONS
        for line, text in find_texts(name)
        for hit in FORBIDDEN.finditer(QUOTED.sub(lambda quoted: " " * len(quoted[0]), text))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", sorted({*PAGES} - LOOSE))
def test_page_has_no_such_kind_and_divides_its_sentences(page: str) -> None:
    text = QUOTED.sub("", GENERATED.sub("", prose(page)))
    sentences = "" if page.startswith("docs/reference/") else TABLE.sub("", text)
    found = re.findall("|".join(PAGE_KINDS.values()), text, re.IGNORECASE)
    assert [*found, *SEMICOLONS.findall(sentences)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/how-to/")])
def test_page_that_tells_how_speaks_to_the_reader_in_steps(page: str) -> None:
    assert re.search(r"\byou\b|\byour\b", prose(page), re.IGNORECASE)
    # These two have a section for each symptom.
    assert re.search(r"^(## )?1\. ", prose(page), re.MULTILINE) or page.endswith(("runbooks.md", "troubleshoot.md"))
