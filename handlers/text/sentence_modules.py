"""The modules that sentence-transformers runs after a transformer.

modules.json, config.json of each module -> read_modules: their kinds and settings, checked
handlers.text.sentence_network runs them, with PyTorch
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from handlers.aliases import Json
from handlers.errors import InvalidConfig
from handlers.text.sentence_files import SENTENCE_CONFIG, Prompts, read_json

# Modules after the transformer, by the last part of their type. Dropout has no effect outside of training.
KINDS = ("Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")
# Ways to make one vector of token states.
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
# Settings of a module with the only supported value.
NEUTRAL = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
NEUTRAL_TRANSFORMER = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
LENGTHS = ("query_length", "document_length", "query_expansion")  # settings that change a text's tokens
OTHER_TEMPLATES = ("chat_template.json", "additional_chat_templates/*.jinja")  # besides chat_template.jinja
# Arguments of transformers' apply_chat_template that are no variables of a template.
RESERVED = frozenset(
    {
        *("chat_template", "continue_final_message", "documents", "max_length", "padding", "processor_kwargs"),
        *("restore_suffix", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize"),
        *("tokenizer_kwargs", "tools", "truncation"),
    }
)
# `processing_kwargs` may have these, and a text's `max_length`.
PROCESSING = {"padding": (True, "longest"), "truncation": (True, "longest_first")}
# Older files have a flag for each mode. Vectors of several modes are concatenated in this order.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class SentenceModule(NamedTuple):
    kind: str  # one of KINDS
    folder: Path
    settings: Json

    @property
    def modes(self) -> Sequence[str]:
        flags = [mode for flag, mode in FLAGS.items() if self.settings.get(flag) is True]
        modes = self.settings.get("pooling_mode") or flags or ["mean"]
        return [modes] if isinstance(modes, str) else modes

    def size(self, size: int) -> int:
        """Return the length of this module's vectors; its input has `size` numbers."""
        if self.kind == "Pooling":
            return size * len(self.modes)
        return int(self.settings["out_features"]) if self.kind == "Dense" else size


def transformer_settings(folder: Path) -> Json:
    """Read the settings of the transformer's module; older files are named after the model."""
    files = sorted(folder.glob("sentence_*_config.json"), key=lambda path: path.name != "sentence_bert_config.json")
    settings: Json = read_json(files[0]) if files else {}
    return settings


def read_modules(folder: Path) -> list[SentenceModule]:
    """Read the modules after the transformer, or the default ones; InvalidConfig if one is not supported."""
    listed = read_json(folder / "modules.json")
    if not listed:
        config = read_json(folder / "config.json")
        is_causal = (config.get("architectures") or [""])[0].endswith("ForCausalLM") and config.get("is_causal", True)
        return [SentenceModule("Pooling", folder, {"pooling_mode": "lasttoken" if is_causal else "mean"})]
    modules = [_read_module(folder, each["type"], each["path"]) for each in listed[1:]]
    first, place = listed[0]["type"], folder / listed[0]["path"]
    is_elsewhere = place != folder and not (place / "config.json").is_file()
    if not first.startswith("sentence_transformers.") or first.rpartition(".")[2] != "Transformer" or is_elsewhere:
        raise InvalidConfig(
            f"modules.json: the first module, {first}, must be a Transformer in the folder itself; write a task for "
            "this model"
        )
    check_transformer(folder, NEUTRAL_TRANSFORMER)
    if [module.kind == "Pooling" for module in modules] != [True] + [False] * (len(modules) - 1):
        raise InvalidConfig("modules.json: one Pooling must follow the Transformer, and only once")
    if modules[0].settings.get("include_prompt") is False and any(Prompts.read(folder).texts.values()):
        raise InvalidConfig(
            f"Pooling: include_prompt: false is not supported together with prompts; remove the prompts from "
            f"{SENTENCE_CONFIG} to embed texts as they are"
        )
    return modules


def check_reranker(folder: Path) -> None:
    """Check the files of a cross-encoder, as sentence-transformers 6 reads them; InvalidConfig if they ask for more."""
    task = "text-generation" if read_answer_ids(folder) else "sequence-classification"
    # CrossEncoder ignores the lengths of queries and documents.
    settings = {name: value for name, value in transformer_settings(folder).items() if name not in LENGTHS}
    check_transformer(folder, {"transformer_task": task, "do_lower_case": False}, settings)
    if any(any(folder.glob(pattern)) for pattern in OTHER_TEMPLATES) or isinstance(_own_template(folder), list):
        raise InvalidConfig("chat template: only one is supported for a reranker; keep it in chat_template.jinja")


def read_answer_ids(folder: Path) -> list[int]:
    """Return the ids of a language model's answers for a pair, the good and the bad; none of any other reranker."""
    listed = read_json(folder / "modules.json") or []
    kinds = [each["type"] for each in listed]
    architectures = read_json(folder / "config.json").get("architectures") or [""]
    if not kinds and architectures[0].endswith("ForCausalLM"):
        raise InvalidConfig(
            "reranking: a language model needs modules.json with a LogitScore, which names its answers, and a chat "
            "template that renders its pairs; save it by CrossEncoder of sentence-transformers 6, or convert it"
        )
    if kinds and [kind.rpartition(".")[2] for kind in kinds] not in (["Transformer"], ["Transformer", "LogitScore"]):
        raise InvalidConfig(
            f"modules.json: {', '.join(kinds)} is not supported for a reranker; write a task for this model"
        )
    if len(kinds) < 2:
        return []
    settings = read_json(folder / listed[1]["path"] / "config.json")
    _check_settings("LogitScore", settings, {"module_input_name": "causal_logits"})
    if settings.get("true_token_id") is None:
        raise InvalidConfig("LogitScore: its config.json lacks true_token_id; copy the whole folder again")
    return [settings[name] for name in ("true_token_id", "false_token_id") if settings.get(name) is not None]


def _own_template(folder: Path) -> object:
    return read_json(folder / "tokenizer_config.json").get("chat_template")


def has_pair_template(folder: Path) -> bool:
    """Whether a chat template renders the pairs of a cross-encoder."""
    modalities = reranker_settings(folder).get("modality_config")
    is_stated = (folder / "chat_template.jinja").is_file() or bool(_own_template(folder))
    return is_stated and (modalities is None or "message" in modalities)


def reranker_settings(folder: Path) -> Json:
    """Read the settings of a cross-encoder's transformer, which only count beside modules.json."""
    return transformer_settings(folder) if (folder / "modules.json").is_file() else {}


def check_transformer(folder: Path, neutral: Mapping[str, object], settings: Json | None = None) -> None:
    """Check the settings of the transformer's module; InvalidConfig if one is not supported."""
    settings = transformer_settings(folder) if settings is None else settings
    _check_settings("Transformer", settings, neutral)
    for name in LENGTHS:
        if settings.get(name) is not None:
            raise InvalidConfig(
                f"Transformer: {name} is not supported; remove it from the settings to use max_seq_length"
            )
    for kind, changes in (settings.get("processing_kwargs") or {}).items():
        for name, value in changes.items():
            is_known = kind == "text" and (name == "max_length" or value in PROCESSING.get(name, ()))
            is_known = is_known or (kind == "chat_template" and name not in RESERVED)
            if not is_known:
                raise InvalidConfig(f"Transformer: processing_kwargs: {kind}: {name} is not supported; remove it")


def _read_module(folder: Path, name: str, path: str) -> SentenceModule:
    kind = name.rpartition(".")[2]
    if kind not in KINDS or not name.startswith("sentence_transformers."):
        raise InvalidConfig(
            f"modules.json: {name} is not supported, only Transformer, {', '.join(KINDS)}; write a task for this model"
        )
    file = folder / path / "config.json"
    has_settings = kind in ("Pooling", "Dense", "LayerNorm")
    if has_settings and not (path and file.is_file()):
        raise InvalidConfig(f"modules.json: {kind} needs {path or 'a folder'}/config.json")
    module = SentenceModule(kind, folder / path, read_json(file) if path else {})
    _check_settings(kind, module.settings, NEUTRAL)
    wrong = [mode for mode in module.modes if mode not in POOLINGS]
    if wrong:
        raise InvalidConfig(f"Pooling: {', '.join(wrong)} is not supported; supported are {', '.join(POOLINGS)}")
    return module


def _check_settings(kind: str, settings: Mapping[str, object], neutral: Mapping[str, object]) -> None:
    for name, value in neutral.items():
        if settings.get(name) not in (None, value):
            raise InvalidConfig(f"{kind}: {name}: {settings[name]} is not supported, only {value}")


def find_vector_size(folder: Path, size: int) -> int:
    """Return the length of a model's vectors; its states have `size` numbers."""
    for module in read_modules(folder):
        size = module.size(size)
    return min(size, read_json(folder / SENTENCE_CONFIG).get("truncate_dim") or size)


def check_mean(folder: Path, setting: str) -> None:
    """Raise InvalidConfig for a setting unless a model's vectors are means of its tokens' states, maybe normalised."""
    pooling, *others = read_modules(folder)
    kinds = {module.kind for module in others} - {"Normalize", "Dropout"}
    if [*pooling.modes] != ["mean"] or kinds:
        found = ", ".join([*pooling.modes, *sorted(kinds)])
        raise InvalidConfig(f"{setting} needs a model that pools by mean alone; this one has {found}")


def has_unit_length(folder: Path) -> bool:
    """Whether a model's vectors have unit length: nothing changes them after they are normalised."""
    kinds = [module.kind for module in read_modules(folder) if module.kind != "Dropout"]
    return kinds[-1] == "Normalize" and not read_json(folder / SENTENCE_CONFIG).get("truncate_dim")
