"""Retrieval: embeddings and reranking in the clients' own forms, against infinity and sentence-transformers.

The same two checkpoints of MiniLM's size stand behind one TorchServe, and behind infinity with each of its engines that
can serve them on a processor: torch and onnxruntime (`optimum`), of which the faster one is the peer.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from deploy.sandbox import started
from handlers.archive_files import CHECKPOINT
from load.bench import archives, peer_process, samples
from load.bench.archives import CPU_ONLY, WINDOW
from load.bench.contender import Contender, Loop, Served, loop_process, registered
from load.bench.peer_process import Peer
from load.bench.rounds import Bench, Comparison, Results, quietly
from load.bench.table import Row
from load.bench.texts import EMBEDDING, LIST, LIST_CLIENTS, OURS
from load.generate import ClosedLoop
from load.inputs import Inputs

RERANKING, IN_PROCESS = "reranking", "CrossEncoder.predict"
OWN_FORM, BASE64 = "our own form", "as base64"
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


def against_best(results: Results, what: str, comparison: Comparison) -> Row:
    """Compare with the faster one of the peer's engines."""
    names = [each.name for each in comparison.contenders if each.name.startswith("infinity")]
    best = max(names, key=lambda name: median(figures.per_s for figures in results[str(comparison), name]))
    return results.row(what, comparison, OURS, best)


def rows(bench: Bench) -> Iterator[Row]:
    """Measure single texts, lists, both forms of numbers, and lists of documents."""
    texts = samples.texts()
    single = samples.requests_of({"model": EMBEDDING, "input": text} for text in texts)
    lists = [{"model": EMBEDDING, "input": part} for part in samples.batched(texts, LIST)]
    asked = [{"model": RERANKING, "query": query, "documents": of} for query, of in samples.rankings()]
    embedder = archives.build(bench, EMBEDDING, bench.work)
    weights = str(cross_encoder(embedder / CHECKPOINT, bench.work / "checkpoints" / "seeded"))
    built = [embedder, archives.build(bench, RERANKING, bench.work, weights=weights)]
    folders = [exported(each, bench.work / "checkpoints" / each.name) for each in built]
    with ExitStack() as stack:
        server = stack.enter_context(started(bench.work, extra=CPU_ONLY))
        loop = stack.enter_context(loop_process(RERANKING, folders[1]))
        ours = registered(server, EMBEDDING, OURS, single, WINDOW)
        ours = replace(ours, headers={"X-Api": "embeddings"})
        ranker = registered(server, RERANKING, OURS, samples.requests_of(asked), WINDOW)
        ranker = replace(ranker, headers={"X-Api": "rerank"}, items=samples.DOCUMENTS)
        singles, rankers, listers = [ours], [ranker], [of_lists(ours, samples.requests_of(lists))]
        for engine in ENGINES:
            peer = infinity(engine, folders, "embeddings")
            process = stack.enter_context(peer_process.started(peer, single.items[0].body))
            theirs = Served(peer.name, process.url, single, headers=TYPE, process=process)
            singles.append(theirs)
            listers.append(of_lists(theirs, samples.requests_of(lists)))
            url = process.url.replace("embeddings", "rerank")
            rankers.append(replace(theirs, url=url, inputs=ranker.inputs, items=samples.DOCUMENTS))
        base64 = samples.requests_of({**body, "encoding_format": "base64"} for body in lists)
        forms: list[Contender] = [
            listers[0],
            replace(of_lists(ours, samples.lists(texts, LIST)), name=OWN_FORM, headers={}),
            replace(of_lists(ours, base64), name=BASE64),
        ]
        loads = {clients: Comparison(ClosedLoop(clients), singles) for clients in (1, 16, 64)}
        listed = Comparison(ClosedLoop(LIST_CLIENTS), listers, f"{LIST_CLIENTS} clients, lists of {LIST}")
        formed = Comparison(ClosedLoop(LIST_CLIENTS), forms, f"forms of {LIST_CLIENTS} clients, lists of {LIST}")
        alone = Comparison(ClosedLoop(1), [ranker, Loop(IN_PROCESS, loop)], f"1 client, {samples.DOCUMENTS} documents")
        ranked = Comparison(ClosedLoop(RERANK_CLIENTS), rankers, f"{RERANK_CLIENTS} clients")
        bench.settle(singles, ClosedLoop(16))
        bench.settle(rankers, ClosedLoop(RERANK_CLIENTS))
        results = bench.measure([*loads.values(), listed, formed, alone, ranked])
    for comparison in (*loads.values(), listed):
        yield against_best(results, f"embeddings, {comparison}, texts/s", comparison)
    yield results.row(f"embeddings, {formed}, texts/s", formed, OURS, OWN_FORM)
    yield results.row(f"embeddings, {formed}, base64, texts/s", formed, BASE64, OURS)
    yield results.row(f"rerank, {alone}, documents/s", alone, OURS, IN_PROCESS)
    yield against_best(results, f"rerank, {ranked}, documents/s", ranked)


def of_lists(contender: Served, inputs: Inputs) -> Served:
    """Send lists in place of single texts."""
    return replace(contender, inputs=inputs, items=LIST)
