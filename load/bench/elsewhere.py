"""Embeddings of servers that you have started, with the same texts and loads, as one table.

    docker run -p 8081:80 ghcr.io/huggingface/text-embeddings-inference:cpu-1.8 --model-id \\
        sentence-transformers/all-MiniLM-L6-v2
    torchserve-batching serve model_store/sentence-embedding.mar
    python -m load.bench.elsewhere ours=predictions=http://localhost:8080/predictions/sentence-embedding \\
        tei=tei=http://localhost:8081/embed
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from load import LoadError
from load.bench import samples
from load.bench.contender import Endpoint
from load.bench.rounds import MOST_PEER_CLIENTS, Bench, compare_with_peers, describe_machine, render
from load.generate import ClosedLoop
from torchserve_client.arguments import Parser, number

# Form -> what it is for.
FORMS = {
    "predictions": "this project and a stock handler",
    "tei": "/embed of text-embeddings-inference",
    "openai": "/v1/embeddings, or OpenVINO Model Server's /v3/embeddings",
    "v2": "a model of Triton's with one input of texts",
}


def write(form: str, text: str, model: str, tensor: str) -> Mapping[str, object]:
    """Return the JSON of a request for one text."""
    match form:
        case "predictions":
            return {"text": text}
        case "tei":
            return {"inputs": text}
        case "openai":
            return {"model": model, "input": text}
        case _:
            return {"inputs": [{"name": tensor, "shape": [1, 1], "datatype": "BYTES", "data": [text]}]}


def parser() -> Parser:
    command = Parser(
        prog="python -m load.bench.elsewhere",
        description="Compare servers of embeddings that you have started.",
        examples=("python -m load.bench.elsewhere ours=predictions=URL tei=tei=http://localhost:8081/embed",),
    )
    forms = "; ".join(f"{name}: {what}" for name, what in FORMS.items())
    command.add_argument("servers", nargs="+", type=_read, metavar="NAME=FORM=URL", help=f"two or more; {forms}")
    command.add_argument("--model", default="texts", metavar="NAME", help="`model` of openai; default: %(default)s")
    command.add_argument("--tensor", default="input_text", metavar="NAME", help="input of v2; default: %(default)s")
    add = command.add_argument
    add("--seconds", type=number(float, 0, is_open=True), default=5.0, metavar="S", help="length of a measurement")
    add("--rounds", type=number(int, 1), default=3, metavar="N", help="repeats; default: %(default)d")
    return command


def _read(text: str) -> tuple[str, str, str]:
    name, form, url = [*text.split("=", 2), "", ""][:3]
    if form not in FORMS or not url.startswith("http"):
        raise argparse.ArgumentTypeError(f"{text}: expected NAME=FORM=URL, FORM one of {', '.join(FORMS)}")
    return name, form, url


def main(arguments: list[str]) -> int:
    command = parser()
    options = command.parse_args(arguments)
    if len({name for name, *_ in options.servers}) < 2:
        command.error("name two servers or more")
    bench = Bench(Path(), rounds=options.rounds, seconds=options.seconds)
    kind, contenders = {"Content-Type": "application/json"}, []
    for name, form, url in options.servers:
        bodies = (write(form, text, options.model, options.tensor) for text in samples.texts())
        contenders.append(Endpoint(name, url, samples.json_inputs(bodies), headers=kind))
    try:
        bench.settle(contenders, ClosedLoop(MOST_PEER_CLIENTS))
        rows = [*compare_with_peers(bench, {"embeddings": contenders}, "texts/s")]
    except LoadError as error:
        print(f"elsewhere: {error}", file=sys.stderr)
        return 1
    print(describe_machine())
    Console(width=None if sys.stdout.isatty() else 200).print(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
