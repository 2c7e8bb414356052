"""The examples of models of one's own, ready to be built, and what other libraries make of the same rows."""

import logging
import runpy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes, load_digits
from sklearn.linear_model import LinearRegression

from deploy.models import ROOT, Model, model

# Bounds of examples/tabular/model/bands.json.
MEDIUM, HIGH = 120, 200


def mnist(folder: Path, suffix: str) -> Model:
    """The digits' model as one of its files, trained in a folder of the test's own where it is not yet."""
    entry = model("mnist")
    own = folder / "mnist"
    if not (own / f"mnist{suffix}").is_file():
        shutil.copytree(entry.folder, own, ignore=shutil.ignore_patterns("mnist.*"))
        threads = torch.get_num_threads()
        try:
            runpy.run_path(str(own / "train.py"), run_name="__main__")
        finally:
            logging.disable(logging.NOTSET)
            torch.set_num_threads(threads)
    name = f"mnist-{suffix[1:]}"
    return replace(entry, name=name, folder=own, weights={"path": f"mnist/mnist{suffix}"})


def digits(count: int) -> NDArray[np.float32]:
    """Images (N, 1, 28, 28), every pixel of scikit-learn's three or four wide."""
    images = load_digits().images[:count].astype(np.float32) / 16
    return np.asarray(np.kron(images, np.ones((4, 4), np.float32))[:, None, 2:30, 2:30])


def probabilities(entry: Model, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the library that a file of the digits' model belongs to makes of images: (N, 10)."""
    path = entry.folder.parent / entry.weights["path"]
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return np.asarray(session.run(["probabilities"], {"image": images})[0])
    program: Any = torch.export.load(path)
    with torch.inference_mode():
        return np.asarray(program.module()(torch.from_numpy(images))["probabilities"])


def people(count: int) -> dict[str, NDArray[Any]]:
    """Columns as examples/tabular takes them."""
    age, sex, bmi, pressure = load_diabetes(scaled=False).data[:count, :4].T
    return {
        "age": age.astype(np.int32),
        "sex": np.array([b"%d" % each for each in sex], object),
        "bmi": bmi.astype(np.float32),
        "blood_pressure": pressure,
    }


def progression(count: int) -> NDArray[np.float64]:
    """What scikit-learn itself predicts of them, from the data set's own numbers."""
    data = load_diabetes(scaled=False)
    fitted = LinearRegression().fit(data.data[:, :4], data.target)
    return np.asarray(fitted.predict(data.data[:count, :4]))


def bands(values: NDArray[np.float64]) -> list[str]:
    """The band of each prediction."""
    return ["low" if value < MEDIUM else "medium" if value < HIGH else "high" for value in values]


def request(name: str) -> bytes:
    """The sample request beside an example."""
    return (ROOT / "examples" / name / "request.json").read_bytes()
