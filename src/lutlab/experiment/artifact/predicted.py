"""Cells that are predicted: what the paper's own model would take on the paper's GPUs, by lutlab.predict.

    predict: {gpu: A100-80GB, engine: lut-gemm}       of the artifact: for all columns that say
    predict: {gpus: 2}                                of a column
    predict: {model: opt-175b, gpus: 8} | false       of an axis entry: what differs in its rows, or that none is

The nearest one counts: entry over column over artifact. The model is the one of the row's overrides at scale=paper.
A prediction stands beside the paper's number under its own verdict and is never a measured one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from lutlab import predict
from lutlab.base.errors import LutlabError
from lutlab.experiment.artifact.columns import PredictSpec

VERDICT = "predicted"
OOM = "OOM"  # as papers print it
DOCUMENT = "docs/how-to/predict.md"
_REASON = "; not measured: "  # in the note of a predicted cell, before why it is not measured
# keys of a row's overrides that change what is read in a way that is not predicted
_NOT_PREDICTED = ("sublayers", "layers", "budget", "candidates", "skip", "mu")
Prediction = Mapping[str, Any]  # arguments of predict.latency


def prediction(overrides: Sequence[str], *specs: PredictSpec | None) -> Prediction:
    """Settings of a row's prediction, of which the last spec that has one decides.

    Args:
        overrides: overrides of the row at scale=paper.
        specs: settings of the artifact, the column and the row's entries; later ones override earlier ones.

    Raises:
        LutlabError: a part is missing, or the row sets what is not predicted.
    """
    settings = {key: value for spec in specs if spec for key, value in spec.settings().items()}
    row = dict(override.lstrip("+").split("=", 1) for override in overrides)
    if unknown := [key for key in row if key.partition(".")[0] in _NOT_PREDICTED]:
        raise LutlabError(f"a row with {unknown[0]}= is not predicted: give it predict: false")
    settings = {"model": _model(row)} | settings
    if missing := [key for key in ("gpu", "engine", "gpus") if key not in settings]:
        raise LutlabError(
            f"predict says no {missing[0]}: give it, as gpu: A100-80GB, engine: lut-gemm, gpus: 1"
        )
    if not settings["model"] or not {"q", "g"} <= row.keys():
        raise LutlabError(
            "a row that is predicted sets model, q and g: give the others predict: false"
        )
    q = float(row["q"])
    width = {"q": int(q) if q.is_integer() else q, "g": int(row["g"])}
    return {"context": None, "shape": settings.pop("model")} | width | settings


def _model(row: Mapping[str, str]) -> str:
    """`model=opt-30b` -> opt-30b; `model=synthetic model.id=conf/shapes/opt-175b` -> opt-175b."""
    return PurePosixPath(row["model.id"]).name if "model.id" in row else row.get("model", "")


def least(settings: Prediction) -> int | None:
    """The least number of its GPUs that hold the model, as predict.gpus says."""
    engine, context = predict.engine(settings["engine"]), settings["context"]
    return predict.gpus(
        *(settings[key] for key in ("shape", "q", "g")),
        gpu=settings["gpu"],
        context=engine.context if context is None else context,
        stored=engine.stored,
        number_bytes=engine.number_bytes,
    )


def predicted(settings: Prediction, factor: float = 1) -> tuple[float | str, str]:
    """Milliseconds a token times `factor`, or OOM of a model too large for its GPUs; and a note with the error."""
    latency = predict.latency(**settings)
    known = "of an error that is not known: nothing was compared"
    if latency.errors:
        known = f"{latency.errors} of the {latency.errors.rows} latencies it is fitted to"
    note = f"for {settings['gpu']}, engine {settings['engine']}, {known} ({DOCUMENT})"
    return factor * latency.ms_per_token if latency.fits else OOM, note


def because(note: str, reason: str) -> str:
    """The note of a predicted cell, and why it is not measured."""
    return f"{note}{_REASON}{reason}"


def reason_of(note: str) -> str:
    """Why a predicted cell is not measured, from its note."""
    return note.partition(_REASON)[2]
