"""Measures int8 against bf16: what it gains, served and in process, and beside it what it costs of the answers.

    held_out inputs -> archives with both graphs, by ./archive.sh's builder and NNCF in .extras/int8
        -> how near int8 and bf16 are to fp32 on inputs that nothing has seen: once, for numbers do not change
        -> one server with ResNet-152 and embeddings in either precision, and stock; a process with each model's loop
    for each round: either precision right after the other, for every figure

ResNet-152 has random weights where the published ones cannot be fetched: it is here for its speed. MobileNetV2,
ResNet-18 and MiniLM are trained. On a processor without instructions for bf16 the other precision is fp32, and the
table says so. Three rounds take some twelve minutes on two cores, and the archives five.
"""

import json
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import openvino
import yaml

from deploy.archive import Recipe
from deploy.models import ROOT, model
from deploy.precision.wanted import LEAST, Wanted
from deploy.sandbox import started
from handlers.errors import InvalidConfig
from handlers.probabilities import softmax
from load.bench.archives import OURS, STOCK, Archives
from load.bench.in_process import Loop as Images
from load.bench.in_process_texts import Loop as Texts
from load.bench.machine import Processor, versions
from load.bench.peers import CPU_ONLY, BenchError, Child, ServedModel
from load.bench.peers import TUNING as PEERS
from load.bench.photographs import photographs
from load.bench.progress import aside, progress
from load.bench.rounds import Rounds, Series, measure_in_turn
from load.bench.table import Bound, Row, ratios, render_cells
from load.bench.texts import EMBEDDING, list_bodies
from load.bench.texts import TUNING as EMBEDDED
from tests import held_out, resnet18
from tests.nearness import Nearness, of_classes, of_vectors

EXTRA = "int8"
INT8, FP32 = "int8", "fp32"
MOBILENET = "mobilenet-v2"
# Models whose answers are compared, and what is sent to them.
IMAGES, TEXTS = (MOBILENET, resnet18.NAME), (EMBEDDING,)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how everything is measured."""

    # Clients of ResNet-152: alone, and as many as a batch holds.
    clients: tuple[int, ...] = (1, 16)
    # Window of an adaptive archive that says none, requests: what its builder would write.
    window: int = 64
    # Images that go through a model together where answers are compared.
    batch_size: int = 16
    # Seconds under load before anything counts, for each model that is served.
    settling_s: float = 3.0
    # Longest measurement, s: there are some twenty a round.
    most_s: float = 8.0


TUNING = Tuning()

# int8 is held to these bounds.
OF_IN_PROCESS_GAIN = Bound(0.85, is_minimum=True)
TIMES_STOCK = Bound(12, is_minimum=True)
EMBEDDINGS_GAIN = Bound(1.3, is_minimum=True)
AGREEMENT = Bound(LEAST, is_minimum=True)


@dataclass(frozen=True, slots=True)
class Answers:
    """How near one model's answers are to those in fp32.

    Attributes:
        what: the model, and the inputs.
        int8, floating: both precisions'.
    """

    what: str
    int8: Nearness
    floating: Nearness


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is measured.

    Attributes:
        store: the model store.
        unpacked: an archive's folder with both graphs, by its model's name.
        floating: the precision that int8 is held against.
        is_trained: whether ResNet-152's weights mean anything.
        remarks: what the builder said of an archive that it refused.
    """

    store: Path
    unpacked: Mapping[str, Path]
    floating: str
    is_trained: bool
    remarks: list[str] = field(default_factory=list)


def run(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure, and say what came out; arguments and errors are those of load.bench.resnet."""
    progress(f"environment: .extras/{EXTRA}")
    if subprocess.run([ROOT / "deploy" / "extras" / "environment.sh", EXTRA], cwd=ROOT, check=False).returncode:
        raise BenchError(f"the environment of {EXTRA} cannot be built; its own words are above")
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as work:
        with aside():
            prepared = prepare(Path(work))
        return measure(prepared, rounds=rounds, duration_s=duration_s, is_markdown=is_markdown)


def prepare(work: Path) -> Prepared:
    """Build every archive, as a folder, and a copy of those that are served for either precision.

    Args:
        work: an empty folder, into which everything is written.
    """
    progress("archives: stock, and ours with NNCF, a minute or two each")
    archives = Archives.prepare(work)
    store = archives.model_store
    for name in ("images", "texts", "entries"):
        (work / name).mkdir()
    images = held_out.crops().write(work / "images", ".jpg")
    texts = held_out.sentences().write(work / "texts", ".txt")
    floating = floating_precision()
    prepared = Prepared(store, {}, floating, archives.is_trained)
    unpacked = {}
    for entry, inputs in (
        (model(OURS), images),
        (model(MOBILENET), images),
        (resnet18.entry(work / "entries"), images),
        (model(EMBEDDING), texts),
    ):
        is_random = entry.name == OURS and not archives.is_trained
        recipe = Recipe(
            entry,
            "random" if is_random else None,
            archive_format="no-archive",
            export_path=store,
            # Where `Archives` has exported ResNet-152 to, if it had to.
            cache_path=work / "built" / ".exports",
            wanted=Wanted("int8", *inputs, least=0.0 if is_random else LEAST),
        )
        unpacked[entry.name] = _built(recipe, prepared.remarks)
    for name in (OURS, EMBEDDING):
        for precision in (floating, INT8):
            variant(unpacked[name], store / f"{name}-{precision}", precision)
    return replace(prepared, unpacked=unpacked)


def measure(prepared: Prepared, *, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure what is prepared, and say what came out."""
    answers = compared(prepared)
    rates: Series = defaultdict(list)
    duration_s = min(duration_s, TUNING.most_s)
    with figures(prepared, duration_s) as every:
        measure_in_turn(rounds, EXTRA, every, rates)
    floating, made = prepared.floating, len(rates["stock"])
    return "\n".join(
        [
            f"int8 and {floating} on {Processor.here()}; {versions('openvino', 'torch', 'torchserve')}, "
            f"NNCF of .extras/{EXTRA}; ResNet-152 of {'trained' if prepared.is_trained else 'UNTRAINED (random)'} "
            f"weights; interleaved rounds: {made}, of {duration_s:g} s each; median (min..max)",
            f"calibrated on {held_out.TUNING.crops} crops of {held_out.photographs_of(held_out.CALIBRATION)}; "
            f"held out as many of {held_out.photographs_of(held_out.HELD_OUT)}; "
            "sentences written for this project, and of books",
            "",
            render_cells(
                ("measured", "stock", INT8, floating, "compared", "wanted", ""),
                [row.cells() for row in table(rates, answers, floating)],
                is_markdown=is_markdown,
            ),
            *prepared.remarks,
        ]
    )


def table(rates: Series, answers: Sequence[Answers], floating: str) -> list[Row]:
    """Make the rows; int8 stands under Row's `ours`, the other precision under its `in_process`.

    Args:
        rates: "stock", and items per second by "WHAT INT8" and "WHAT FLOATING", as `figures` names them.
        answers: of each model.
        floating: the precision that int8 is held against.
    """

    def row(what: str, unit: str, bound: Bound | None = None) -> Row:
        ours, theirs = rates[f"{what} {INT8}"], rates[f"{what} {floating}"]
        label = f"{what}, {unit}: {INT8} / {floating}"
        return Row(label, [], ours, theirs, ratios(ours, theirs), bound=bound)

    rows = []
    for clients in TUNING.clients:
        over_http, loop = row(served(clients), "images/s"), row(in_process(OURS, clients), "images/s")
        rows += [over_http, loop]
        if clients > 1:
            gains = ratios(over_http.compared, loop.compared)
            what = f"{served(clients)}: the ratio served / the same in process"
            rows.append(Row(what, [], [], [], gains, bound=OF_IN_PROCESS_GAIN))
            times = ratios(over_http.ours, rates["stock"])
            what = f"{served(clients)}, images/s: {INT8} / stock"
            rows.append(Row(what, rates["stock"], over_http.ours, [], times, bound=TIMES_STOCK))
    for name in IMAGES:
        rows += [row(in_process(name, clients), "images/s") for clients in TUNING.clients]
    rows += [row(LISTS, "texts/s", EMBEDDINGS_GAIN), row(in_process(EMBEDDING, EMBEDDED.batch_size), "texts/s")]
    for each in answers:
        is_cosine = each.what.startswith(EMBEDDING)
        mean, worst = ("mean cosine", "least cosine") if is_cosine else ("top-1 agreement", "largest change")
        pair = ([each.int8.mean], [each.floating.mean])
        rows.append(Row(f"{each.what}: {mean} with fp32", [], *pair, [each.int8.mean], digits=4, bound=AGREEMENT))
        pair = ([each.int8.worst], [each.floating.worst])
        rows.append(Row(f"{each.what}: {worst}", [], *pair, [each.int8.worst], digits=4))
    return rows


def compared(prepared: Prepared) -> list[Answers]:
    """Hold both precisions of the trained models against fp32, on the inputs that are held out."""
    images = held_out.crops()
    found = []
    for name in IMAGES:
        loop = Images(prepared.unpacked[name], images.held_out)
        logits = partial(loop.logits, bodies=images.held_out, batch_size=TUNING.batch_size)
        probabilities = {each: softmax(logits(each)) for each in (FP32, INT8, prepared.floating)}
        near = {each: of_classes(probabilities[FP32], other) for each, other in probabilities.items()}
        found.append(Answers(f"{name}, {len(images.held_out)} crops", near[INT8], near[prepared.floating]))
    for name in TEXTS:
        texts = [body.decode() for body in held_out.sentences().held_out]
        embedder = Texts(prepared.unpacked[name])
        vectors = {each: embedder.vectors(each, texts) for each in (FP32, INT8, prepared.floating)}
        close = {each: of_vectors(vectors[FP32], other) for each, other in vectors.items()}
        found.append(Answers(f"{name}, {len(texts)} sentences", close[INT8], close[prepared.floating]))
    return found


@contextmanager
def figures(prepared: Prepared, duration_s: float) -> Iterator[dict[str, Callable[[], float]]]:
    """Start the server and the loops, and give every figure's measurement, in items per second.

    Args:
        prepared: what is served, and what runs in process.
        duration_s: length of each.
    """
    precisions = (prepared.floating, INT8)
    bodies, lists = photographs(), list_bodies()
    made: dict[str, Callable[[], float]] = {}
    with ExitStack() as stack:
        server = stack.enter_context(started(prepared.store, extra=CPU_ONLY))
        loops = {
            name: stack.enter_context(Child.started(f"load.bench.{module}", prepared.unpacked[name]))
            for module, names in (("in_process", (OURS, *IMAGES)), ("in_process_texts", TEXTS))
            for name in names
        }

        def registered(name: str, sent: Sequence[bytes], batch_size: int) -> ServedModel:
            folder = prepared.store / name
            archive = name if folder.is_dir() else None
            window = window_of(folder) if folder.is_dir() else None
            peer = ServedModel(server, name, sent, window or batch_size, archive=archive)
            peer.register()
            # Java's compiler and the worker meet their load before anything counts: stock is the first of a round.
            peer.measure(EMBEDDED.list_clients, TUNING.settling_s)
            return peer

        def looped(name: str, batch_size: int, precision: str, **more: str) -> float:
            order = {"batch_size": batch_size, "duration_s": duration_s, "precision": precision, **more}
            return float(loops[name].ask(order)["throughput_per_s"])

        def rate(peer: ServedModel, clients: int, items: int = 1) -> float:
            return peer.measure(clients, duration_s).throughput_per_s * items

        stock = registered(STOCK, bodies, PEERS.batch_size)
        ours = {each: registered(f"{OURS}-{each}", bodies, PEERS.batch_size) for each in precisions}
        embeddings = {each: registered(f"{EMBEDDING}-{each}", lists, EMBEDDED.batch_size) for each in precisions}
        made["stock"] = partial(rate, stock, max(TUNING.clients))
        for clients in TUNING.clients:
            for each in precisions:
                made[f"{served(clients)} {each}"] = partial(rate, ours[each], clients)
            for name in (OURS, *IMAGES):
                for each in precisions:
                    made[f"{in_process(name, clients)} {each}"] = partial(looped, name, clients, each)
        for each in precisions:
            made[f"{LISTS} {each}"] = partial(rate, embeddings[each], EMBEDDED.list_clients, EMBEDDED.list_length)
        for each in precisions:
            what = f"{in_process(EMBEDDING, EMBEDDED.batch_size)} {each}"
            made[what] = partial(looped, EMBEDDING, EMBEDDED.batch_size, each, way="sorted")
        yield made


LISTS = f"{EMBEDDING}, lists of {EMBEDDED.list_length}"


def served(clients: int) -> str:
    """Name the figures of ResNet-152 behind the server."""
    return f"{OURS}, {clients} client{'s' if clients > 1 else ''}"


def in_process(name: str, batch_size: int) -> str:
    """Name the figures of a loop without a server."""
    return f"{name} in process, {batch_size} at a time"


def floating_precision() -> str:
    """Name the precision that int8 is held against: bf16 where the processor has instructions for it."""
    has_bf16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return "bf16" if has_bf16 else FP32


def variant(folder: Path, copy: Path, precision: str) -> None:
    """Copy an archive that is a folder, under another name and with one precision.

    Args:
        folder: the archive.
        copy: where the copy lies; its name is the model's.
        precision: what its model-config.yaml says.
    """
    shutil.copytree(folder, copy)
    config_path, manifest_path = copy / "model-config.yaml", copy / "MAR-INF" / "MANIFEST.json"
    config = yaml.safe_load(config_path.read_text(encoding="utf-8"))
    config["handler"] = {**config["handler"], "precision": precision}
    config_path.write_text(yaml.safe_dump(config), encoding="utf-8")
    manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
    manifest["model"]["modelName"] = copy.name
    manifest_path.write_text(json.dumps(manifest), encoding="utf-8")


def window_of(folder: Path) -> int | None:
    """Read the window of an adaptive archive, in requests; None of a classic one, whose batches others decide."""
    config = yaml.safe_load((folder / "model-config.yaml").read_text(encoding="utf-8"))
    return int(config.get("batchSize") or TUNING.window) if config.get("continuousBatching") else None


def _built(recipe: Recipe, remarks: list[str]) -> Path:
    """Build an archive; one that is refused for its answers is built all the same, and the refusal kept."""
    try:
        return recipe.build().path
    except InvalidConfig as error:
        remarks.append(f"REFUSED: {error}")
        progress(remarks[-1])
        return replace(recipe, wanted=replace(recipe.wanted, least=0.0)).build().path
