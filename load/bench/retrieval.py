"""Retrieval: embeddings and reranking in the clients' own forms, against infinity and sentence-transformers.

The same two checkpoints of MiniLM's size stand behind one TorchServe, and behind infinity with each of its engines that
can serve them on a processor: torch and onnxruntime (`optimum`). Single texts are of the part `peers`.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from deploy.run.server import Server
from deploy.sandbox import started
from handlers.archive_files import CHECKPOINT
from load.bench import archives, peer_process, samples
from load.bench.archives import CPU_ONLY, WINDOW
from load.bench.contender import Contender, Loop, Served, loop_process, registered
from load.bench.peer_process import Peer
from load.bench.rounds import MOST_PEER_CLIENTS, Bench, Comparison, against_peers, quietly
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


def exported(built: Path, folder: Path) -> Path:
    """Copy an archive's checkpoint, and add the ONNX file that infinity's engine of that name takes."""
    shutil.copytree(built / CHECKPOINT, folder)
    network = NETWORKS[built.name].from_pretrained(folder, dtype=torch.float32).eval()
    rows = dict(AutoTokenizer.from_pretrained(folder)(["a text", "another text"], return_tensors="pt"))
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    (folder / "onnx").mkdir()
    with quietly(), torch.inference_mode():
        torch.onnx.export(
            *(network, (), folder / "onnx" / "model.onnx"),
            kwargs=rows,
            dynamic_shapes=dict.fromkeys(rows, free),
            input_names=list(rows),
            output_names=["logits" if built.name == RERANKING else "last_hidden_state"],
            external_data=False,
        )
    return folder


def cross_encoder(embedder: Path, folder: Path) -> Path:
    """Write a checkpoint of an embedder's size and vocabulary with one score, of seeded weights: time is measured."""
    config = AutoConfig.from_pretrained(embedder, num_labels=1)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(embedder).save_pretrained(folder)
    return folder


def infinity(engine: str, folders: Sequence[Path], path: str) -> Peer:
    """Serve checkpoints under their folders' names."""
    models = [word for each in folders for word in ("--model-id", str(each), "--served-model-name", each.name)]
    command = ("infinity_emb", "v2", *models, "--engine", engine, "--device", "cpu", "--no-model-warmup")
    quiet = ("--log-level", "error", "--host", "127.0.0.1", "--port")
    offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    return Peer(f"infinity, {engine}", "infinity", (*command, *quiet), path, headers=TYPE, variables=offline)


@contextmanager
def embedders(bench: Bench, built: Sequence[Path]) -> Iterator[tuple[Server, list[Served]]]:
    """Serve archives with one TorchServe, and their checkpoints with infinity, by each of its engines.

    The contenders embed single texts, ours first.
    """
    single = samples.requests_of({"model": EMBEDDING, "input": text} for text in samples.texts())
    folders = [exported(each, bench.work / "checkpoints" / each.name) for each in built]
    with ExitStack() as stack:
        server = stack.enter_context(started(bench.work, extra=CPU_ONLY))
        ours = registered(server, EMBEDDING, OURS, single, WINDOW)
        contenders = [replace(ours, headers={"X-Api": "embeddings"})]
        for engine in ENGINES:
            peer = infinity(engine, folders, "embeddings")
            process = stack.enter_context(peer_process.started(peer, single.items[0].body))
            contenders.append(Served(peer.name, process.url, single, headers=TYPE, process=process))
        bench.settle(contenders, ClosedLoop(MOST_PEER_CLIENTS))
        yield server, contenders


def embeddings(bench: Bench) -> Iterator[Row]:
    """Measure single texts."""
    with embedders(bench, [archives.build(bench, EMBEDDING, bench.work)]) as (_, contenders):
        yield from against_peers(bench, {"embeddings": contenders}, "texts/s")


def rows(bench: Bench) -> Iterator[Row]:
    """Measure lists of texts, both forms of numbers, and lists of documents."""
    texts = samples.texts()
    lists = [{"model": EMBEDDING, "input": part} for part in samples.batched(texts, LIST)]
    asked = [{"model": RERANKING, "query": query, "documents": of} for query, of in samples.rankings()]
    embedder = archives.build(bench, EMBEDDING, bench.work)
    weights = str(cross_encoder(embedder / CHECKPOINT, bench.work / "checkpoints" / "seeded"))
    ranking = archives.build(bench, RERANKING, bench.work, weights=weights)
    with (
        embedders(bench, [embedder, ranking]) as (server, singles),
        loop_process(RERANKING, bench.work / "checkpoints" / RERANKING) as loop,
    ):
        ranker = registered(server, RERANKING, OURS, samples.requests_of(asked), WINDOW)
        ranker = replace(ranker, headers={"X-Api": "rerank"}, items=samples.DOCUMENTS)
        rankers = [ranker]
        for each in singles[1:]:
            url = each.url.replace("embeddings", "rerank")
            rankers.append(replace(each, url=url, inputs=ranker.inputs, items=samples.DOCUMENTS))
        listers = [of_lists(each, samples.requests_of(lists)) for each in singles]
        base64 = samples.requests_of({**body, "encoding_format": "base64"} for body in lists)
        forms: list[Contender] = [
            listers[0],
            replace(of_lists(singles[0], samples.lists(texts, LIST)), name=OWN_FORM, headers={}),
            replace(of_lists(singles[0], base64), name=BASE64),
        ]
        listed = Comparison(ClosedLoop(LIST_CLIENTS), listers, f"{LIST_CLIENTS} clients, lists of {LIST}")
        formed = Comparison(ClosedLoop(LIST_CLIENTS), forms, f"forms of {LIST_CLIENTS} clients, lists of {LIST}")
        alone = Comparison(ClosedLoop(1), [ranker, Loop(IN_PROCESS, loop)], f"1 client, {samples.DOCUMENTS} documents")
        ranked = Comparison(ClosedLoop(RERANK_CLIENTS), rankers, f"{RERANK_CLIENTS} clients")
        bench.settle(rankers, ClosedLoop(RERANK_CLIENTS))
        results = bench.measure([listed, formed, alone, ranked])
    for peer in singles[1:]:
        yield results.row(f"embeddings, {listed}, texts/s", listed, OURS, peer.name)
        yield results.row(f"rerank, {ranked}, documents/s", ranked, OURS, peer.name)
    yield results.row(f"embeddings, {formed}, texts/s", formed, OURS, OWN_FORM)
    yield results.row(f"embeddings, {formed}, base64, texts/s", formed, BASE64, OURS)
    yield results.row(f"rerank, {alone}, documents/s", alone, OURS, IN_PROCESS)


def of_lists(contender: Served, inputs: Inputs) -> Served:
    """Send lists in place of single texts."""
    return replace(contender, inputs=inputs, items=LIST)
