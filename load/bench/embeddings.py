"""Embeddings in the form of OpenAI: ours, and infinity with each of its engines for processors.

One TorchServe and infinity serve one checkpoint; infinity runs it with torch and with onnxruntime (`optimum`).
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from handlers.archive_files import CHECKPOINT
from load.bench import archives, hosts, peer_process, samples
from load.bench.archives import CPU_ONLY, WINDOW
from load.bench.contender import Contender, Endpoint, register
from load.bench.peer_process import Peer
from load.bench.rounds import MOST_PEER_CLIENTS, Bench, Row, compare_with_peers, redirect_output
from load.bench.texts import EMBEDDING, OURS
from load.generate import ClosedLoop
from load.sandbox import run_server

ENGINES = ("torch", "optimum")
TYPE = {"Content-Type": "application/json"}


def export(built: Path, folder: Path) -> Path:
    """Copy an archive's checkpoint, and add an ONNX file for infinity's engine `optimum`."""
    shutil.copytree(built / CHECKPOINT, folder)
    network = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    rows = dict(AutoTokenizer.from_pretrained(folder)(["a text", "another text"], return_tensors="pt"))
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    (folder / "onnx").mkdir()
    with redirect_output(), torch.inference_mode():
        torch.onnx.export(
            *(network, (), folder / "onnx" / "model.onnx"),
            kwargs=rows,
            dynamic_shapes=dict.fromkeys(rows, free),
            input_names=list(rows),
            output_names=["last_hidden_state"],
            external_data=False,
        )
    return folder


def infinity(engine: str, folder: Path) -> Peer:
    command = ("infinity_emb", "v2", "--model-id", str(folder), "--served-model-name", EMBEDDING, "--engine", engine)
    options = ("--device", "cpu", "--no-model-warmup", "--log-level", "error", "--host", "127.0.0.1", "--port")
    offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    return Peer(f"infinity, {engine}", "infinity", (*command, *options), "embeddings", headers=TYPE, variables=offline)


def measure(bench: Bench) -> Iterator[Row]:
    single = samples.json_inputs({"model": EMBEDDING, "input": text} for text in samples.texts())
    folder = export(archives.build(bench, EMBEDDING, bench.work), bench.work / "checkpoint")
    with ExitStack() as stack:
        server = stack.enter_context(run_server(bench.work, extra=CPU_ONLY))
        ours = register(server, EMBEDDING, OURS, single, WINDOW)
        headers = {"X-Api": "embeddings"}
        contenders: list[Contender] = [replace(ours, headers=headers)]
        contenders.append(stack.enter_context(hosts.serve_tuned(bench, bench.work / EMBEDDING, single, headers)))
        for engine in ENGINES:
            peer = infinity(engine, folder)
            process = stack.enter_context(peer_process.start(peer, single.items[0].body))
            contenders.append(Endpoint(peer.name, process.url, single, headers=TYPE, process=process))
        bench.settle(contenders, ClosedLoop(MOST_PEER_CLIENTS))
        yield from compare_with_peers(bench, {"embeddings": contenders}, "texts/s")
