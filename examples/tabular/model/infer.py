"""A table's columns in, a prediction and its band out: scikit-learn, trained in seconds while the worker starts.

The data are scikit-learn's own: 442 people with diabetes, and how far their disease went on in a year (Efron et al.,
Least Angle Regression, 2004). A model that takes longer would be trained before, and `load` would read its file.
"""

import json
from pathlib import Path

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

# Columns of the data set that the model uses, and their positions in it.
COLUMNS = {"age": 0, "sex": 1, "bmi": 2, "blood_pressure": 3}

# Set by `load`, for `infer`.
loaded: dict[str, Pipeline | dict[str, float]] = {}


def load(folder: Path, device: str) -> None:  # noqa: ARG001 - scikit-learn has no device
    """Train the model, and read the bands from the file beside this one."""
    data = load_diabetes(scaled=False)
    columns = {name: data.data[:, place] for name, place in COLUMNS.items()}
    # Texts, as clients send them; the data set has 1 and 2, without their meaning.
    columns["sex"] = np.array([b"%d" % sex for sex in columns["sex"]], object)
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), [1]), remainder=StandardScaler(), sparse_threshold=0
    )
    loaded["model"] = make_pipeline(encoder, LinearRegression()).fit(table(**columns), data.target)
    loaded["bands"] = json.loads((folder / "bands.json").read_text())


def infer(age: np.ndarray, sex: np.ndarray, bmi: np.ndarray, blood_pressure: np.ndarray) -> dict[str, np.ndarray]:
    """Columns (B,) -> progression (B,) float64, band (B,) of text: the highest band whose bound it reaches."""
    progression = loaded["model"].predict(table(age, sex, bmi, blood_pressure))
    names, bounds = np.array([*loaded["bands"]], object), [*loaded["bands"].values()]
    return {"progression": progression, "band": names[np.searchsorted(bounds, progression, "right") - 1]}


def table(age: np.ndarray, sex: np.ndarray, bmi: np.ndarray, blood_pressure: np.ndarray) -> np.ndarray:
    """Put columns of different types side by side."""
    return np.stack([each.astype(object) for each in (age, sex, bmi, blood_pressure)], 1)
