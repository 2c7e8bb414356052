"""Retrieval: embeddings and reranking in the forms of OpenAI and Cohere; ours, infinity and sentence-transformers.

One TorchServe and infinity serve two checkpoints of MiniLM's size, infinity with each of its engines for processors:
torch and onnxruntime (`optimum`). The part `peers` measures single texts.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from deploy.run.server import Server
from deploy.sandbox import run_server
from handlers.archive_files import CHECKPOINT
from load.bench import archives, peer_process, samples
from load.bench.archives import CPU_ONLY, WINDOW
from load.bench.contender import Contender, Endpoint, Loop, register, start_loop
from load.bench.peer_process import Peer
from load.bench.rounds import MOST_PEER_CLIENTS, Bench, Comparison, compare_with_peers, redirect_output
from load.bench.table import Row
from load.bench.texts import EMBEDDING, LIST, LIST_CLIENTS, OURS
from load.generate import ClosedLoop
from load.inputs import Inputs

RERANKING = "reranking"
IN_PROCESS = "CrossEncoder.predict"
OWN_FORM = "our own form"
BASE64 = "as base64"
ENGINES = ("torch", "optimum")
NETWORKS = {EMBEDDING: AutoModel, RERANKING: AutoModelForSequenceClassification}
RERANK_CLIENTS = 8
TYPE = {"Content-Type": "application/json"}


def export(built: Path, folder: Path) -> Path:
    """Copy an archive's checkpoint, and add an ONNX file for infinity's engine `optimum`."""
    shutil.copytree(built / CHECKPOINT, folder)
    network = NETWORKS[built.name].from_pretrained(folder, dtype=torch.float32).eval()
    rows = dict(AutoTokenizer.from_pretrained(folder)(["a text", "another text"], return_tensors="pt"))
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    (folder / "onnx").mkdir()
    with redirect_output(), torch.inference_mode():
        torch.onnx.export(
            *(network, (), folder / "onnx" / "model.onnx"),
            kwargs=rows,
            dynamic_shapes=dict.fromkeys(rows, free),
            input_names=list(rows),
            output_names=["logits" if built.name == RERANKING else "last_hidden_state"],
            external_data=False,
        )
    return folder


def write_cross_encoder(embedder: Path, folder: Path) -> Path:
    """Write a cross-encoder of an embedder's size and vocabulary, with seeded weights, which do not change the time."""
    config = AutoConfig.from_pretrained(embedder, num_labels=1)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(embedder).save_pretrained(folder)
    return folder


def infinity(engine: str, folders: Sequence[Path], path: str) -> Peer:
    """Return an infinity that serves checkpoints under their folders' names."""
    models = [word for each in folders for word in ("--model-id", str(each), "--served-model-name", each.name)]
    command = ("infinity_emb", "v2", *models, "--engine", engine, "--device", "cpu", "--no-model-warmup")
    quiet = ("--log-level", "error", "--host", "127.0.0.1", "--port")
    offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    return Peer(f"infinity, {engine}", "infinity", (*command, *quiet), path, headers=TYPE, variables=offline)


@contextmanager
def serve_embedders(bench: Bench, built: Sequence[Path]) -> Iterator[tuple[Server, list[Endpoint]]]:
    """Serve archives with one TorchServe, and their checkpoints with infinity, with each of its engines.

    The contenders embed single texts, ours first.
    """
    single = samples.json_inputs({"model": EMBEDDING, "input": text} for text in samples.texts())
    folders = [export(each, bench.work / "checkpoints" / each.name) for each in built]
    with ExitStack() as stack:
        server = stack.enter_context(run_server(bench.work, extra=CPU_ONLY))
        ours = register(server, EMBEDDING, OURS, single, WINDOW)
        contenders = [replace(ours, headers={"X-Api": "embeddings"})]
        for engine in ENGINES:
            peer = infinity(engine, folders, "embeddings")
            process = stack.enter_context(peer_process.start(peer, single.items[0].body))
            contenders.append(Endpoint(peer.name, process.url, single, headers=TYPE, process=process))
        bench.settle(contenders, ClosedLoop(MOST_PEER_CLIENTS))
        yield server, contenders


def measure_embeddings(bench: Bench) -> Iterator[Row]:
    """Measure single texts."""
    with serve_embedders(bench, [archives.build(bench, EMBEDDING, bench.work)]) as (_, contenders):
        yield from compare_with_peers(bench, {"embeddings": contenders}, "texts/s")


def measure(bench: Bench) -> Iterator[Row]:
    """Measure lists of texts, both encodings of numbers, and lists of documents."""
    texts = samples.texts()
    lists = [{"model": EMBEDDING, "input": part} for part in samples.split(texts, LIST)]
    queries = [{"model": RERANKING, "query": query, "documents": of} for query, of in samples.rankings()]
    embedder = archives.build(bench, EMBEDDING, bench.work)
    weights = str(write_cross_encoder(embedder / CHECKPOINT, bench.work / "checkpoints" / "seeded"))
    ranking = archives.build(bench, RERANKING, bench.work, weights=weights)
    with (
        serve_embedders(bench, [embedder, ranking]) as (server, singles),
        start_loop(RERANKING, bench.work / "checkpoints" / RERANKING) as loop,
    ):
        ranker = register(server, RERANKING, OURS, samples.json_inputs(queries), WINDOW)
        ranker = replace(ranker, headers={"X-Api": "rerank"}, items=samples.DOCUMENTS)
        rankers = [ranker]
        for each in singles[1:]:
            url = each.url.replace("embeddings", "rerank")
            rankers.append(replace(each, url=url, inputs=ranker.inputs, items=samples.DOCUMENTS))
        listers = [send_lists(each, samples.json_inputs(lists)) for each in singles]
        base64 = samples.json_inputs({**body, "encoding_format": "base64"} for body in lists)
        forms: list[Contender] = [
            listers[0],
            replace(send_lists(singles[0], samples.lists(texts, LIST)), name=OWN_FORM, headers={}),
            replace(send_lists(singles[0], base64), name=BASE64),
        ]
        listed = Comparison(ClosedLoop(LIST_CLIENTS), listers, f"{LIST_CLIENTS} clients, lists of {LIST}")
        formed = Comparison(ClosedLoop(LIST_CLIENTS), forms, f"forms of {LIST_CLIENTS} clients, lists of {LIST}")
        single = Comparison(ClosedLoop(1), [ranker, Loop(IN_PROCESS, loop)], f"1 client, {samples.DOCUMENTS} documents")
        ranked = Comparison(ClosedLoop(RERANK_CLIENTS), rankers, f"{RERANK_CLIENTS} clients")
        bench.settle(rankers, ClosedLoop(RERANK_CLIENTS))
        results = bench.measure([listed, formed, single, ranked])
    for peer in singles[1:]:
        yield results.row(f"embeddings, {listed}, texts/s", listed, OURS, peer.name)
        yield results.row(f"rerank, {ranked}, documents/s", ranked, OURS, peer.name)
    yield results.row(f"embeddings, {formed}, texts/s", formed, OURS, OWN_FORM)
    yield results.row(f"embeddings, {formed}, base64, texts/s", formed, BASE64, OURS)
    yield results.row(f"rerank, {single}, documents/s", single, OURS, IN_PROCESS)


def send_lists(contender: Endpoint, inputs: Inputs) -> Endpoint:
    """Return a contender that sends lists in place of single texts."""
    return replace(contender, inputs=inputs, items=LIST)
