"""The phrases that CONTRIBUTING.md's rules of language exclude, searched in pages and in the text of Python files."""

import ast
import re
import subprocess
from collections.abc import Iterator

from deploy.models import ROOT
from tests.pages import FENCE

PHRASES = (
    r"nobody|everybody|anybody|whoever|anew|likewise|soonest|so often|as above|for want of|one's own",
    r"of (?:its|his|their|one's|our|my|your) own(?! \w)",
    r"that (?:is|are) (?-i:none)|is no valid|(?:is|are) no (?:number|text|list|name|path|image|tensor)s?",
    r"(?:has|have|had) not(?! \w)|(?:has|have|had) not (?:an?|the|its|this|that) \w+",
    r"who (?:sends|asks|has|calls|waits|comes|arrives|reads|needs|wants) [^.,;:]*?(?: is| are| gets| waits| may| must)",
    r"(?:gives?|given|giving|gave|gets?|got) back|(?:says?|said|told) so|in the place of|held against",
)
FORBIDDEN = re.compile(
    rf"\A\W*(?-i:What|Who|Whose) (?!went before)[a-z][^?!]*\Z|\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE
)
# A string of fewer words is not a message; code, quotations and the targets of links are not ours.
MESSAGE = re.compile(r"\w+ +\w+ +\w+")
QUOTED = re.compile(r"`[^`]*`|\]\([^)]*\)|\"[^\"\n]*\"")
# Old entries, sentences that are inputs of models, and this file.
EXCEPTIONS = {
    "CHANGELOG.md",
    "tests/handlers/tasks/test_translation_documents.py",
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
