"""The check that a checkpoint's tokenizer makes the tokens of its own tokenizer.json.

tokenizer.json -> tokenizers, the settings of tokenizer_config.json -> ids of sample texts } equal, or InvalidConfig
folder         -> AutoTokenizer, as the build and its worker       -> ids of them          } with what to write

transformers 5 builds the tokenizer of the class in tokenizer_config.json, or of config.json's model_type, and takes
little but the vocabulary from tokenizer.json. A class that is wrong or missing was harmless in transformers 4, which
read the whole file, so many published models have one. The build rejects them instead of reading tokenizer.json
itself, because sentence-transformers and users' own programs, with which answers are compared, would go on with others.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tokenizers

from deploy.models import ModelEntry
from handlers.checkpoints import import_transformers, load_tokenizer
from handlers.errors import InvalidConfig, reason
from handlers.text.encoders import read_backend
from handlers.text.sentence_files import read_json
from torchserve_client.payloads import Json

TEXTS = (
    *(
        "The Quick brown fox, isn't it?",
        "Caf\u00e9 na\u00efve stra\u00dfe \u00c9COLE",
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    ),
    *(
        "\u5929\u6c14\u5f88\u597d\u3002\u6771\u4eac",
        "\ud55c\uad6d\uc740\ud589",
        "\u0633\u0644\u0627\u0645 \u05e9\u05dc\u05d5\u05dd",
        "12,345.67 in 2024",
        "\U0001f600 \U0001f44d\U0001f3fd",
    ),
)
# Texts that some classes normalise otherwise than their own tokenizer.json: they decide if another class agrees.
ODD = ("two  spaces   here", " before and after ", "a\tb\nc", "e\u0301 \ufb01 \u2163")
# The settings that transformers 4 wrote over tokenizer.json, too: their names there, by the kinds of parts.
SETTINGS = {
    "BertNormalizer": {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    },
    "ByteLevel": {"add_prefix_space": "add_prefix_space"},
}
OWN, CONFIG = "tokenizer.json", "tokenizer_config.json"


def check_tokenizer(model: ModelEntry, folder: Path, *, trust_remote_code: bool = False) -> None:
    """Raise InvalidConfig, which names what to write, if transformers makes other tokens than tokenizer.json."""
    settings = read_json(folder / CONFIG)
    if not (folder / OWN).is_file() or (trust_remote_code and "auto_map" in settings):
        return
    try:
        own, tokenizer = _read_own(folder, settings), None
    except Exception as error:
        raise InvalidConfig(
            f"tokenizers {tokenizers.__version__} cannot read tokenizer.json ({reason(error)}): it is broken, or a "
            "later version wrote it; save the tokenizer again with save_pretrained"
        ) from error
    try:
        tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    except (InvalidConfig, ImportError):
        raise
    except Exception as error:
        _check_config(folder)
        name = settings.get("tokenizer_class") or read_json(folder / "config.json").get("model_type") or "AutoTokenizer"
        words = f"{name} of transformers cannot read its tokenizer.json ({reason(error)})"
    else:
        has_files = any((folder / file).is_file() for file in tokenizer.vocab_files_names.values())
        if not tokenizer.is_fast and has_files:
            return  # a tokenizer in Python reads these, with which the model was trained
        if (text := _find_difference(tokenizer, own, (*TEXTS, *ODD))) is None:
            return
        words = f"{type(tokenizer).__name__} of transformers makes other tokens of {text!r} than its tokenizer.json"
    has_languages = hasattr(tokenizer, "src_lang")
    if way_out := next(_find_ways_out(folder, settings, own, has_languages=has_languages), None):
        raise InvalidConfig(f"{words}; write {way_out} in {CONFIG}")
    if tokenizer is None or _find_difference(tokenizer, own, TEXTS) is not None:
        raise InvalidConfig(
            f"{words}; write the tokenizer_class with which the model was trained in {CONFIG}, or save the tokenizer "
            "again with save_pretrained"
        )
    print(f"{model.name}: {words}, and no tokenizer_class changes that", file=sys.stderr)


def _check_config(folder: Path) -> None:
    """Raise InvalidConfig if config.json, which transformers reads for the tokenizer, too, is at fault."""
    if (folder / "config.json").is_file():
        try:
            import_transformers().AutoConfig.from_pretrained(folder, local_files_only=True)
        except Exception as error:
            raise InvalidConfig(f"transformers cannot read config.json ({reason(error)}); correct it") from error


def _read_own(folder: Path, settings: Json) -> list[tokenizers.Tokenizer]:
    """Read tokenizer.json as it is, and with the settings that transformers 4 wrote over it, too."""
    text = (folder / OWN).read_text(encoding="utf-8")

    def follow(part: Json) -> Json:
        names = SETTINGS.get(str(part.get("type")), {})
        return part | {names[key]: settings[key] for key in names if settings.get(key) is not None}

    is_set = any(settings.get(key) is not None for names in SETTINGS.values() for key in names)
    texts = [text, *([json.dumps(json.loads(text, object_hook=follow))] if is_set else [])]
    found = [*map(read_backend, texts)]
    for backend in found:
        # Every call of transformers states these two.
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = bool(settings.get("split_special_tokens"))
    return found


def _find_difference(tokenizer: Any, own: Sequence[tokenizers.Tokenizer], texts: Sequence[str]) -> str | None:
    """Return the first text, or added token, whose ids are not those of tokenizer.json; None if all are."""
    # A model of several languages has a token of the text's language, which is a state of its tokenizer.
    options = {"add_special_tokens": not hasattr(tokenizer, "src_lang")}
    added = [each.content for each in own[0].get_added_tokens_decoder().values()]
    texts = [*texts, *(f"a{token}b" for token in added)]
    firsts, seconds = texts[:2], texts[2:4]
    rows = [row for pairs in ((texts,), (firsts, seconds)) for row in tokenizer(*pairs, **options)["input_ids"]]
    asked: list[str | tuple[str, str]] = [*texts, *zip(firsts, seconds, strict=True)]
    expected = [[each.ids for each in one.encode_batch(asked, **options)] for one in own]
    found = [[text for text, *both in zip(asked, rows, ids, strict=True) if both[0] != both[1]] for ids in expected]
    return str(found[-1][0]) if all(found) else None


def _find_ways_out(
    folder: Path, settings: Json, own: Sequence[tokenizers.Tokenizer], *, has_languages: bool
) -> Iterator[str]:
    """Yield the entries of tokenizer_config.json with which transformers makes the tokens of tokenizer.json."""
    names = import_transformers().models.auto.tokenization_auto.TOKENIZER_MAPPING_NAMES
    usual = names.get(read_json(folder / "config.json").get("model_type"))
    changes: list[Json] = [{"do_lower_case": False}, {"add_prefix_space": True}]
    changes = [each for each in changes if not each.keys() & settings.keys()]
    classes = dict.fromkeys((usual, "XLMRobertaTokenizer", "PreTrainedTokenizerFast"))
    changes += [{"tokenizer_class": name} for name in classes if name]
    for change in changes:
        with tempfile.TemporaryDirectory() as work:
            for file in folder.glob("*"):
                if file.name != CONFIG and file.suffix != ".safetensors":
                    (Path(work) / file.name).symlink_to(file.resolve())
            (Path(work) / CONFIG).write_text(json.dumps({**settings, **change}), encoding="utf-8")
            with suppress(Exception):  # a class may not be able to read the files
                tokenizer = load_tokenizer(Path(work))
                is_alike = hasattr(tokenizer, "src_lang") == has_languages
                if is_alike and _find_difference(tokenizer, own[:1], (*TEXTS, *ODD)) is None:
                    yield json.dumps(change)[1:-1]
