"""Stages a task on an encoder of transformers: a Hugging Face folder or hub id -> the files of an archive.

a checkpoint's tensors, its tokenizer, modules and prompts -> write_vector_space -> vector-space.txt in the archive

Vectors of equal identities may stand in one index. The worker appends its precision; formats of files and versions of
libraries do not count.
"""

import hashlib
import io
import json
import logging
import shutil
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import openvino
import safetensors
import torch
import transformers
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

from deploy.archives.hub import open_checkpoint, pack
from deploy.archives.sources import Source
from deploy.archives.tasks import find_staged_files, task_class, task_of
from deploy.archives.tokens import check_tokenizer
from deploy.models import Engine, ModelEntry
from handlers.archive_files import CHECKPOINT, GRAPH, VECTOR_SPACE
from handlers.config import parse
from handlers.errors import Unfaithful, reason
from handlers.image_text.towers import TextTower
from handlers.text import token_networks
from handlers.text.config import TextConfig
from handlers.text.encoder_modules import Encoder, load_encoder
from handlers.text.encoders import Head, write_tokenizer
from handlers.text.sentence_modules import read_modules
from torchserve_client.payloads import Json

# Keys of JSON that do not change a vector.
NEUTRAL = ("transformers_version", "_name_or_path", "__version__", "dtype", "torch_dtype", "architectures")
UNREAD = ("generation_config.json", "special_tokens_map.json", "prepared.json", "model.safetensors.index.json")
DIGITS = 16
WINDOWS = ("sliding_window", "local_attention")  # a configuration's names for the window of attention


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    """Write the checkpoint, without its weights for `openvino`, and the graph except for `torch`."""
    config: TextConfig = parse(task_of(model).settings_class(), model.config().get("handler"))
    if origin.kind == "folder" and read_head(model.handler).is_pooled:
        read_modules(Path(origin.location))  # a model of words has no config.json; the rejection names its modules
    with open_checkpoint(model, origin, with_code=config.trust_remote_code) as source:
        check_tokenizer(model, source, trust_remote_code=config.trust_remote_code)
        if network := read_head(model.handler).network:
            getattr(token_networks, network)(source)  # rejects other modules, for PyTorch as well
        if engine != "torch":
            head = read_head(model.handler).under(config)
            encoder = load_encoder(head, source, trust_remote_code=config.trust_remote_code)
            openvino.save_model(export(encoder), folder / GRAPH, compress_to_fp16=False)
        pack(source, folder, with_weights=engine != "openvino")
        if engine != "torch" and not config.trust_remote_code:  # a worker on PyTorch imports transformers anyway
            write_tokenizer(folder / CHECKPOINT)
        if read_head(model.handler).owner:
            write_vector_space(source, folder)
    for name, path in find_staged_files(model, task_of(model)).items():
        shutil.copyfile(path, folder / name)


def read_head(task: str) -> Head:
    """Return the model's head, which the class of a built-in task states."""
    head: Head = task_class(task).head
    return head


def export(encoder: Encoder | TextTower) -> openvino.Model:
    """Export (B, T) int64 inputs as a graph by a quick trace, or torch.export if it treats a size as constant."""
    model = next((each for each in encoder.modules() if isinstance(each, transformers.PreTrainedModel)), None)
    if model is not None and any(getattr(model.config.get_text_config(), name, None) for name in WINDOWS):
        # Fused attention returns NaN for a token whose window has only padding, and later layers pass it on.
        model.set_attn_implementation("eager")
    encoder.eval()
    with torch.no_grad(), warnings.catch_warnings():
        # Tracing warns of each Python branch in transformers; the check of fidelity finds the relevant ones.
        warnings.simplefilter("ignore")
        try:
            # Two rows of three tokens: an axis of length one could become a constant.
            # As in `vision`, no check traces it again.
            example, unchecked = _make_example(encoder, 2, 3), {"check_trace": False}
            traced = TorchScriptPythonDecoder(encoder, example_input=example, trace_kwargs=unchecked)
            graph = _name_ports(encoder, openvino.convert_model(traced))
            openvino.compile_model(graph, "CPU")([each.numpy() for each in _make_example(encoder, 1, 5).values()])
        except Exception as error:
            try:
                logging.disable(logging.CRITICAL)  # torch.export prints and logs the whole program with an error
                with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                    graph = _name_ports(encoder, openvino.convert_model(_export_program(encoder)))
            except Exception:
                raise Unfaithful(f"OpenVINO cannot convert it: {reason(error)}") from error
            finally:
                logging.disable(logging.NOTSET)
    return graph


def _make_example(encoder: Encoder | TextTower, rows: int, length: int) -> dict[str, torch.Tensor]:
    inputs = {name: torch.ones(rows, length, dtype=torch.int64) for name in encoder.input_names}
    end, size = (getattr(getattr(encoder.model, "config", None), each, None) for each in ("eos_token_id", "vocab_size"))
    if isinstance(end, int) and 0 <= end < (size or 0):  # heads as BART's need one in each row
        inputs["input_ids"][:, -1] = end
    return inputs


def _export_program(encoder: Encoder | TextTower) -> torch.export.ExportedProgram:
    any_size = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
    shapes = dict.fromkeys(encoder.input_names, any_size)
    return torch.export.export(encoder, (), _make_example(encoder, 2, 11), dynamic_shapes=shapes, strict=False)


def _name_ports(encoder: Encoder | TextTower, graph: openvino.Model) -> openvino.Model:
    """Name the inputs and outputs, and free their sizes."""
    names = (*encoder.input_names, *encoder.output_names)
    for port, name in zip((*graph.inputs, *graph.outputs), names, strict=True):
        port.get_tensor().set_names({name})
    graph.reshape({port: openvino.PartialShape([-1, -1]) for port in graph.inputs})
    return graph


def write_vector_space(source: Path, folder: Path) -> None:
    digest = hashlib.sha256()
    files = sorted(path for path in source.rglob("*") if path.is_file() and path.name not in UNREAD)
    for path in files:
        if path.suffix != ".safetensors":
            name = path.relative_to(source).as_posix()
            digest.update(name.encode() + hashlib.sha256(_read(path)).digest())
    # A model in several files has the tensors of one.
    tensors = {}
    for path in files:
        if path.suffix == ".safetensors":
            place = path.parent.relative_to(source).as_posix() if path.name.startswith("model") else path.name
            with safetensors.safe_open(path, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - no mapping
                    tensors[f"{place}/{name}"] = _hash(opened.get_tensor(name))
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name])
    (folder / VECTOR_SPACE).write_text(digest.hexdigest()[:DIGITS], encoding="utf-8")


def _hash(tensor: torch.Tensor) -> bytes:
    return hashlib.sha256(str(tuple(tensor.shape)).encode() + tensor.float().contiguous().numpy().tobytes()).digest()


def _read(path: Path) -> bytes:
    if path.suffix != ".json":
        return path.read_bytes()

    def drop(found: Json) -> Json:
        return {key: value for key, value in found.items() if key not in NEUTRAL}

    content = json.loads(path.read_text(encoding="utf-8"), object_hook=drop)
    return json.dumps(content, sort_keys=True).encode()
