"""The modules that sentence-transformers runs after a transformer.

modules.json, config.json of each module -> read_modules: their kinds and settings, checked
settings -> SentenceModules: states (B, T, D) and a mask (B, T) -> vectors (B, E)
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch

from handlers.errors import InvalidConfig
from handlers.text.sentence_files import SENTENCE_CONFIG, Prompts, make_torch_module, read_json

# Modules after the transformer, by the last part of their type. Dropout has no effect outside of training.
KINDS = ("Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")
# Settings of a module with the only supported value.
NEUTRAL = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
NEUTRAL_TRANSFORMER = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
NEUTRAL_RERANKER = {"transformer_task": "sequence-classification", "do_lower_case": False}
# Settings of a transformer that change its tokens; `processing_kwargs` may have these, and a text's `max_length`.
LENGTHS = ("query_length", "document_length", "query_expansion")
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
    """One entry of modules.json."""

    kind: str  # one of KINDS
    folder: Path
    settings: Mapping[str, Any]

    @property
    def modes(self) -> Sequence[str]:
        """The modes of a Pooling."""
        flags = [mode for flag, mode in FLAGS.items() if self.settings.get(flag) is True]
        modes = self.settings.get("pooling_mode") or flags or ["mean"]
        return [modes] if isinstance(modes, str) else modes

    def size(self, size: int) -> int:
        """Return the length of this module's vectors; its input has `size` numbers."""
        if self.kind == "Pooling":
            return size * len(self.modes)
        return int(self.settings["out_features"]) if self.kind == "Dense" else size


def transformer_settings(folder: Path) -> Mapping[str, Any]:
    """Read the settings of the transformer's module; older files are named after the model."""
    files = sorted(folder.glob("sentence_*_config.json"), key=lambda path: path.name != "sentence_bert_config.json")
    settings: Mapping[str, Any] = read_json(files[0]) if files else {}
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
    _check_transformer(folder, NEUTRAL_TRANSFORMER)
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
    kinds = [each["type"] for each in read_json(folder / "modules.json") or ()]
    if kinds and (len(kinds) > 1 or kinds[0].rpartition(".")[2] != "Transformer"):
        raise InvalidConfig(
            f"modules.json: {', '.join(kinds)} is not supported for a reranker; write a task for this model"
        )
    template = read_json(folder / "tokenizer_config.json").get("chat_template")
    if template or (folder / "chat_template.jinja").is_file():
        raise InvalidConfig(
            "reranking: the model's chat template renders its pairs, and is not supported; write a task for this model"
        )
    _check_transformer(folder, NEUTRAL_RERANKER)


def _check_transformer(folder: Path, neutral: Mapping[str, Any]) -> None:
    settings = transformer_settings(folder)
    _check_settings("Transformer", settings, neutral)
    for name in LENGTHS:
        if settings.get(name) is not None:
            raise InvalidConfig(
                f"Transformer: {name} is not supported; remove it from the settings to use max_seq_length"
            )
    for kind, changes in (settings.get("processing_kwargs") or {}).items():
        for name, value in changes.items():
            is_known = kind == "text" and (name == "max_length" or value in PROCESSING.get(name, ()))
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


def _check_settings(kind: str, settings: Mapping[str, Any], neutral: Mapping[str, Any]) -> None:
    for name, value in neutral.items():
        if settings.get(name) not in (None, value):
            raise InvalidConfig(f"{kind}: {name}: {settings[name]} is not supported, only {value}")


def find_vector_size(folder: Path, size: int) -> int:
    """Return the length of a model's vectors; its states have `size` numbers."""
    for module in read_modules(folder):
        size = module.size(size)
    return min(size, read_json(folder / SENTENCE_CONFIG).get("truncate_dim") or size)


# Padding may contain NaN, and be on either side. `places` counts a text's tokens from 1; 0 is padding.
def _mean(states: torch.Tensor, places: torch.Tensor, power: float = 1) -> torch.Tensor:
    return states.where(places > 0, 0).sum(1) / (places > 0).sum(1).float().clamp(min=1e-9) ** power


def _weighted_mean(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return (states.where(places > 0, 0) * places).sum(1) / places.sum(1).clamp(min=1e-9)


POOLINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cls": lambda states, places: states.where(places == 1, 0).sum(1),
    "max": lambda states, places: states.where(places > 0, -torch.inf).amax(1),
    "mean": _mean,
    "mean_sqrt_len_tokens": lambda states, places: _mean(states, places, 0.5),
    "weightedmean": _weighted_mean,
    "lasttoken": lambda states, places: states.where(places == places.amax(1, keepdim=True), 0).sum(1),
}


class Dense(torch.nn.Module):
    """A linear layer and an activation, with an optional residual connection around both."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Build the layer from its config.json."""
        super().__init__()
        sizes = int(settings["in_features"]), int(settings["out_features"])
        self.linear = torch.nn.Linear(*sizes, bias=settings.get("bias", True))
        name = settings.get("activation_function", "torch.nn.Tanh")
        activation = make_torch_module(name)
        if activation is None:
            raise InvalidConfig(f"Dense: activation_function: {name} is not a module of torch.nn")
        self.activation = activation
        self.residual: torch.nn.Module | None = None
        if settings.get("use_residual"):
            is_equal = sizes[0] == sizes[1]
            self.residual = torch.nn.Identity() if is_equal else torch.nn.Linear(*sizes, bias=False)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Project vectors, (B, in_features) -> (B, out_features)."""
        projected: torch.Tensor = self.activation(self.linear(vectors))
        return projected if self.residual is None else projected + self.residual(vectors)


class Normalize(torch.nn.Module):
    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Scale vectors, (B, E), to unit length."""
        return torch.nn.functional.normalize(vectors, dim=-1)


class SentenceModules(torch.nn.Module):
    """All modules after the transformer. As parts of the graph they return (B, E), not (B, T, D)."""

    def __init__(self, folder: Path) -> None:
        """Load the modules; InvalidConfig if one is not supported, or its weights do not fit."""
        super().__init__()
        pooling, *others = read_modules(folder)
        self.modes, self.others = pooling.modes, torch.nn.ModuleList(map(_load_module, others))
        self.most: int | None = read_json(folder / SENTENCE_CONFIG).get("truncate_dim")

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Turn states, (B, T, D), and a mask, (B, T), into vectors, (B, E) float32."""
        places = (mask.cumsum(1) * mask).unsqueeze(-1)
        vectors = torch.cat([POOLINGS[mode](states.float(), places) for mode in self.modes], -1)
        for module in self.others:
            dtype = next((each.dtype for each in module.parameters()), vectors.dtype)
            vectors = module(vectors.to(dtype)).float()
        return vectors[:, : self.most]


def _load_module(module: SentenceModule) -> torch.nn.Module:
    if module.kind in ("Normalize", "Dropout"):
        return Normalize() if module.kind == "Normalize" else torch.nn.Identity()
    weights, pickled = module.folder / "model.safetensors", module.folder / "pytorch_model.bin"
    try:
        is_dense = module.kind == "Dense"
        empty = Dense(module.settings) if is_dense else torch.nn.LayerNorm(int(module.settings["dimension"]))
        state = (
            safetensors.torch.load_file(weights)
            if weights.is_file()
            else torch.load(pickled, map_location="cpu", weights_only=True)
        )
        empty.load_state_dict({name.removeprefix("norm."): tensor for name, tensor in state.items()})
    except FileNotFoundError:
        raise InvalidConfig(
            f"{module.kind}: {module.folder.name} lacks {weights.name} and {pickled.name}; set --weights FOLDER"
        ) from None
    except (OSError, RuntimeError, KeyError, pickle.UnpicklingError, safetensors.SafetensorError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise InvalidConfig(f"{module.kind}: {module.folder.name} cannot be loaded: {reason}") from error
    return empty
