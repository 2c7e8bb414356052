"""Complete checkpoints of a few kilobytes with seeded weights, for heads that no registry package carries trained."""

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from deploy.archives.encoders import read_head
from deploy.models import Engine
from tests import exports

# Most tokens that each of them takes.
LIMIT = 192

# The source of the vocabularies; other characters (emoji, Arabic) are unknown to WordPiece.
PAGE = """\
In the spring the river rose above the meadows, and the ferry did not run for nine days. Anna Berg, who kept the inn
at Lindau, wrote to her brother in Lisbon that the bridge would hold. It held. On the tenth day Tomas Okafor crossed
it with two mules and a letter for the mayor. Nobody knows what the letter said, because the mayor burned it, but that
evening he sent for the surveyor and asked how high the water had stood in the year of the great flood. The surveyor,
a careful man, answered that the mark on the church door was wrong by a hand. Later they built the wall of stone.
The bakery sells bread, rolls and a plum cake on Sundays. What time does the train to Busan leave? Who wrote the letter?
Where did the mules go? How long did the ferry not run? When was the wall built? Why did the mayor burn the letter?
봄에 강물이 불어나서 나룻배가 아흐레 동안 다니지 못했다. 안나는 서울에 사는 오빠에게 편지를 썼다.
다리는 무너지지 않았다. 부산으로 가는 기차는 몇 시에 떠납니까? 시장은 그 편지를 태웠다.
באביב עלה הנהר על גדותיו והמעבורת לא הפליגה תשעה ימים. אנה כתבה מכתב לאחיה.
"""

# Lengths from one token to as many as the models take, scripts of several kinds and directions, and what breaks
# offsets: characters beyond the basic plane, joined emoji, letters that a normaliser takes apart, white space.
TEXTS = (
    "Anna Berg kept the inn at Lindau.",
    "x",
    "  The ferry did not run.\n\n\tThe bridge held?!  ",
    "안나는 서울에 사는 오빠에게 편지를 썼다. 다리는 무너지지 않았다.",
    "Tomas 👩‍👩‍👧 crossed the bridge 🌉🌉 with two mules.",
    "אנה כתבה מכתב לאחיה; the mayor burned it.",
    "Où est la façade? Ａｎｎａ wrote İstanbul, straße, ﬁne, e\u0301te\u0301.",
    "The surveyor answered that the mark on the church door was wrong by a hand. " * 3,
    "كتبت آنا رسالة إلى أخيها",
    "the mayor the mayor the mayor, the river; the wall (of stone) - 1893!",
    "Who wrote the letter? [MASK] did, nobody-knows why: https://example.org/letter?id=7.",
    "plum cake",
    # Special tokens that a client writes are special, as in the libraries.
    "Anna [SEP] wrote </s> the letter [CLS] to <s></s> Tomas [PAD] in <pad> spring [SEP]",
)

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC")


def checkpoint(folder: Path, kind: str, task: str, labels: Any = LABELS, files: Any = None, **config: Any) -> Path:
    """Write a checkpoint of `bert`, with segments, `distilbert`, without, or `roberta`, of bytes; returns the folder.

    The task's head, where it has one, is scaled up, so that answers are decided. `files` are further JSON files.
    """
    tokenizer = byte_level() if kind == "roberta" else word_piece()
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if kind == "bert" else ["input_ids", "attention_mask"]
    names = ("<s>", "</s>", "<pad>", "<unk>", "<mask>") if kind == "roberta" else SPECIAL
    roles = ("cls_token", "sep_token", "pad_token", "unk_token", "mask_token")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=inputs,
        model_max_length=LIMIT,
        **dict(zip(roles, names, strict=True)),
    )
    fast.save_pretrained(folder)
    sizes = {"bert": BERT_SIZES, "distilbert": DISTILBERT_SIZES, "roberta": {**BERT_SIZES, "type_vocab_size": 1}}[kind]
    classes = {} if task == "question_answering" else {"id2label": dict(enumerate(labels))}
    settings = transformers.AutoConfig.for_model(
        kind,
        vocab_size=len(fast),
        # RoBERTa counts positions from behind its padding index.
        max_position_embeddings=LIMIT + (fast.pad_token_id + 1 if kind == "roberta" else 0),
        pad_token_id=fast.pad_token_id,
        initializer_range=0.1,
        **{**sizes, **classes, **config},
    )
    torch.manual_seed(1)
    network = getattr(transformers, read_head(task).auto_class).from_config(settings)
    with torch.no_grad():
        head = getattr(network, "qa_outputs", None) or getattr(network, "classifier", None)
        if head is not None:
            getattr(head, "out_proj", head).weight.mul_(8)
    network.save_pretrained(folder)
    for name, content in (files or {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return exports.dated(folder)


def change_json(path: Path, **changes: Any) -> None:
    """Set values of a JSON object in a file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def staged(folder: Path, kind: str, task: str, engine: Engine = "auto", **config: Any) -> Path:
    """Return such a checkpoint's archive contents; engine `torch` needs no export."""
    return exports.archived(task, checkpoint(folder / "checkpoint", kind, task, **config), folder, {}, engine=engine)


SPECIAL = ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")
BERT_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
DISTILBERT_SIZES = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}


def word_piece() -> tokenizers.Tokenizer:
    normalizer, pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = {word for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(PAGE))}
    letters = sorted(set("".join(words)))
    # By hand: the trainer numbers its pieces differently each time. Every other word, so that some come in pieces.
    pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *sorted(words - set(letters))[::2]]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL[3]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([*SPECIAL])
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return tokenizer


def byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(PAGE.splitlines(), trainer)
    # The trainer numbers special tokens from zero on.
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", special.index("</s>")), ("<s>", 0))
    return tokenizer
