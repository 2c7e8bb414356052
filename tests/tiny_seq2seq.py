"""The smallest translation checkpoints: seeded weights, tokenizers trained on a page of text.

Their answers mean nothing, but differ from text to text and from option to option, which is what tests need.
"""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

from tests import exports

PAGE = (
    "The ferry leaves the harbour at seven and comes back before dark. Nobody on the island owns a car, so letters and "
    "bread are carried up the hill on a mule. In winter the sea is rough and the school closes for weeks at a time. "
    "Old Marta keeps the lighthouse and writes down every ship that passes, its name, its flag and the hour. Her "
    "grandson wants to become a doctor, but there is no school for that here; he reads by the lamp until she sleeps. "
    "When the wind turns to the north the fishermen mend their nets and talk about the year of the great storm, when "
    "the church lost its roof and the bell was found in a field. What was broken then was built again with stone."
)
SENTENCES = [sentence.strip() + "." for sentence in PAGE.split(".") if sentence.strip()]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
UNKNOWN = "<unk>"
SIZES: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 128,
    # Tied to the output, random embeddings repeat the last token.
    "tie_word_embeddings": False,
}


def marian(folder: Path, targets: tuple[str, ...] = ()) -> Path:
    """A Marian model; with `targets`, one of many target languages."""
    pieces = sentence_pieces(folder / "source.spm")
    (folder / "target.spm").write_bytes((folder / "source.spm").read_bytes())
    words = ["</s>", "<unk>", *(f">>{code}<<" for code in targets), *pieces, "<pad>"]
    _write_vocabulary(folder, words)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tokenizer = transformers.MarianTokenizer(
            str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"), model_max_length=128
        )
    pad = len(words) - 1
    config = transformers.MarianConfig(
        vocab_size=len(words), pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0, bos_token_id=0, **SIZES
    )
    # As Helsinki-NLP's: a search by default, and the padding banned.
    generation = {"bad_words_ids": [[pad]], "num_beams": 4, "renormalize_logits": True, "max_length": 128}
    return _save(transformers.MarianMTModel, config, tokenizer, folder, **generation)


def m2m100(folder: Path) -> Path:
    """An M2M100 model of a hundred languages: en, fr, ..."""
    pieces = sentence_pieces(folder / "sentencepiece.bpe.model")
    _write_vocabulary(folder, [*SPECIAL, *pieces])
    # In the order of their ids, as the published tokenizers list them.
    codes = FAIRSEQ_LANGUAGE_CODES["m2m100"]
    files, special = (str(folder / name) for name in ("vocab.json", "sentencepiece.bpe.model")), _languages(codes)
    tokenizer = transformers.M2M100Tokenizer(*files, additional_special_tokens=special, model_max_length=128)
    config = _m2m_config(tokenizer.get_lang_id("zu") + 9)
    return _save(transformers.M2M100ForConditionalGeneration, config, tokenizer, folder)


def _languages(codes: Sequence[str]) -> list[str]:
    return [f"__{code}__" for code in codes]


def nllb(folder: Path) -> Path:
    """An NLLB model of two hundred languages: eng_Latn, fra_Latn, ..."""
    vocabulary, merges = _bpe(SPECIAL)
    tokenizer = transformers.NllbTokenizer(vocab=vocabulary, merges=merges, model_max_length=128)
    return _save(transformers.M2M100ForConditionalGeneration, _m2m_config(len(tokenizer)), tokenizer, folder)


def seamless(folder: Path, *, is_v2: bool = False) -> Path:
    """A SeamlessM4T model, text to text, of three languages: eng, fra, deu."""
    codes = ("eng", "fra", "deu")
    words: dict[str, Any] = dict(zip(("vocab", "merges"), _bpe(["<pad>", "<unk>", "<s>", "</s>"]), strict=True))
    tokenizer = transformers.SeamlessM4TTokenizer(
        **words, additional_special_tokens=_languages(codes), model_max_length=128
    )
    sizes = {("hidden_size" if name == "d_model" else name): size for name, size in SIZES.items()}
    kind = "SeamlessM4Tv2" if is_v2 else "SeamlessM4T"
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(tokenizer), initializer_range=0.3, **sizes)
    ids = {code: tokenizer.convert_tokens_to_ids(f"__{code}__") for code in codes}
    model_class = getattr(transformers, f"{kind}ForTextToText")
    return _save(model_class, config, tokenizer, folder, text_decoder_lang_to_code_id=ids)


def t5(folder: Path, kind: str = "T5") -> Path:
    """A T5, MT5 or UMT5 model, which knows no languages."""
    tokenizer, size = own_tokenizer()
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(vocab_size=size, tie_word_embeddings=False, **sizes)
    return _save(getattr(transformers, f"{kind}ForConditionalGeneration"), config, tokenizer, folder)


def bart(folder: Path, kind: str = "Bart") -> Path:
    """A Bart, MBart, Pegasus or like model, whose answers have a forced first and last token."""
    tokenizer, size = own_tokenizer()
    tokenizer.bos_token = tokenizer.eos_token
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": int(kind != "Pegasus")}
    config = getattr(transformers, f"{kind}Config")(vocab_size=size, **ids, **SIZES)
    forced = {"forced_bos_token_id": 5, "forced_eos_token_id": 1}
    return _save(getattr(transformers, f"{kind}ForConditionalGeneration"), config, tokenizer, folder, **forced)


def own_tokenizer() -> tuple[Any, int]:
    """A tokenizer of no family, and how many tokens it has."""
    vocabulary, merges = _bpe(["<pad>", "</s>", "<unk>"])
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    roles: dict[str, Any] = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 128}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **roles), len(vocabulary)


def _m2m_config(vocab_size: int) -> Any:
    return transformers.M2M100Config(
        vocab_size=vocab_size, bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, **SIZES
    )


def _save(model_class: Any, config: Any, tokenizer: Any, folder: Path, **generation: Any) -> Path:
    torch.manual_seed(7)
    model = model_class(config).eval()
    with torch.no_grad():
        # Weights as they are initialised repeat one token whatever the text; larger ones answer each text differently.
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embed" not in name:
                weight.normal_(0, 1)
        # Special tokens that an answer does not show.
        model.lm_head.weight[[number for number in tokenizer.all_special_ids if number != tokenizer.eos_token_id]] = 0
    # Otherwise loading would make a new one.
    model.generation_config._from_model_config = False
    for name, value in {"no_repeat_ngram_size": 2, **generation}.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return exports.dated(folder)


def train_pieces(sentences: list[str], file: Any, **settings: Any) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=file, minloglevel=2, **settings
    )


def sentence_pieces(path: Path) -> list[str]:
    with path.open("wb") as file:
        train_pieces(SENTENCES * 4, file, vocab_size=110)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
    return [piece for piece in pieces if piece not in ("<s>", "</s>", "<unk>")]


def _bpe(special: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    backend = Tokenizer(models.BPE(unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=140, special_tokens=special, show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    model = json.loads(backend.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]


def _write_vocabulary(folder: Path, words: list[str]) -> None:
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
