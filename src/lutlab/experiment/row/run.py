"""Row -> the run that it asks for: a model quantized one way, or a product; every value in range, or refused."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from lutlab.base import registry
from lutlab.base.devices import device_named
from lutlab.base.errors import LutlabError, Mistakes, nearest
from lutlab.base.fields import defaults, spelled
from lutlab.base.groups import Bits, Width, whole
from lutlab.base.lazy import torch
from lutlab.base.specs import (
    CalibrationSpec,
    ModelRun,
    ModelSpec,
    ProductRun,
    RunSpec,
    Settings,
    Sublayer,
    TextSpec,
)
from lutlab.compress.widths import layer_widths
from lutlab.data import embedded, folder, user
from lutlab.data import tasks as lm_eval
from lutlab.data.protocols import OWN, PROTOCOLS
from lutlab.experiment.row.row import Data, Row
from lutlab.kernels.gpu.variants import full_name
from lutlab.measure import products
from lutlab.quantizers.contract import Calibrated, Method
from lutlab.quantizers.stored import STORED

# Fields of a row that a product of matrices does not read.
_OF_LAYERS = ("layers", "stream", "sublayers", *(n for n in defaults(Settings) if n != "seed"))


def run_of(row: Row) -> RunSpec:
    """The run that a row asks for.

    Raises:
        Mistakes: fields that contradict each other, as a budget for what has no widths to choose.
        LutlabError: q or g out of range, no such device here, tuning of what cannot be tuned.
    """
    quantizer = registry.lookup("method", row.method)(**dict(row.options))  # refuses
    device = _device(row.device)
    common: dict[str, Any] = {
        "method": row.method,
        "options": row.options,
        "device": device,
        "dtype": _dtype(row.dtype, device),
    }
    if mistakes := list(_mistakes(row, quantizer)):
        raise Mistakes(mistakes)
    quantizes = quantizer.quantizes
    if row.model.source == "product":  # one weight, and nothing to calibrate on
        q, g = _width(row, quantizer)
        shapes, kernel = products.parse_shapes(row.model.id), full_name(row.kernel)
        return ProductRun(
            shapes=shapes, q=q, g=g, kernel=kernel, knobs=row.all_knobs, seed=row.seed, **common
        )
    candidates = _candidates(row, quantizer)
    q, g = (max(q for q, _ in candidates), -1) if candidates else _width(row, quantizer)
    if row.tuning:
        from lutlab.tuning.stages import check_tunable

        check_tunable(quantizer, row.tuning)
    settings = {name: getattr(row, name) for name in defaults(Settings)}
    settings |= {} if quantizes else {"skip": ()}
    packed = row.model.packed  # layers are drawn as they are stored: no quantizer sees a weight
    looks = candidates or row.tuning or (isinstance(quantizer, Calibrated) and not packed)
    return ModelRun(
        model=_named(row.model),
        q=q,
        g=g,
        calibration=_calibration(row) if looks else None,
        sublayers=_sublayers(row, quantizer) if quantizes else (),
        candidates=candidates,
        layers=layer_widths(row.layers or {}, quantizer) if quantizes else (),
        **common | settings,
    )


def _mistakes(row: Row, quantizer: Method) -> Iterator[str]:
    """What a row asks for that cannot be together, a line each."""
    model = row.model
    if not model.id:
        yield (
            f"model.id is not given: name a model or its folder, of a product its shape (source {model.source})"
        )
    elif model.source == "product":
        changed = [name for name in _OF_LAYERS if getattr(row, name) != defaults(Row)[name]]
        for name in (*changed, *(f"model.{name}" for name in model.changed())):
            yield f"{name}= is of a model, and {model.id} is a single product (model=product): drop it"
    else:
        yield from _of_model(row)
        yield from _of_budget(row, quantizer)
        if row.tuning and row.stream:
            yield "tuning moves all weights of the model at once: drop stream=true"
        if row.tuning and model.task and row.tuning.loss != "labels":
            yield (
                f"tuning.loss={row.tuning.loss} learns from the full-precision model's classes, and its head is drawn "
                "(model.task): give tuning.loss=labels"
            )


def _of_model(row: Row) -> Iterator[str]:
    model, spread = row.model, row.device == "spread"
    if row.kernel != "auto" or row.all_knobs:
        named = f"kernel={row.kernel}" if row.kernel != "auto" else row.all_knobs[0][0]
        yield f"{named} is of a single product: set model=product"
    if row.method == STORED and (row.stream or spread):
        cause = "stream=true" if row.stream else "device=spread"
        yield f"method=stored holds the whole model on one device: drop {cause}"
    does = {"layers": "cuts synthetic models", "packed": "draws the layers of synthetic models"}
    for name, what in does.items():
        if (value := getattr(model, name)) and model.source != "synthetic":
            yield (
                f"model.{name}={spelled(value)} {what} only, and {model.name} is of source {model.source}: give "
                f"model=synthetic model.id={model.id}, or drop model.{name}"
            )
    if model.revision is not None and model.source in ("embedded", "folder"):
        yield (
            f"model.revision={model.revision} is a commit on the hub, and {model.name} is of source {model.source}, "
            "whose files are here: drop it, or write model.revision=null where the preset has one"
        )
    refused = {
        "budget": row.budget is not None,
        "tuning": row.tuning,
        "stream": row.stream,
        "device=spread": spread,
    }
    if model.packed and any(refused.values()):
        yield (
            "model.packed draws layers as they are stored, in the memory of one device, and has no weights to choose "
            f"widths by or to train: drop {next(key for key, is_set in refused.items() if is_set)}, or model.packed"
        )


def _of_budget(row: Row, quantizer: Method) -> Iterator[str]:
    if row.budget is None:
        return
    if not quantizer.quantizes:
        yield f"method={row.method} has no widths to choose: drop budget={row.budget}"
    if row.stream:
        yield "budget tries widths out on copies of the model: drop stream=true"
    widths = [f"sublayers.{kind}" for kind, *_ in _own_widths(row)] + ["layers"] * bool(row.layers)
    if widths:
        yield f"budget chooses the widths of all layers: drop {widths[0]} or the budget"
    if not (row.candidates.q and row.candidates.g):
        yield "budget needs widths to choose from: candidates.q or candidates.g is empty"


def _width(row: Row, quantizer: Method) -> Width:
    """(q, g) of a row: 16 and -1 in full precision, whatever the row says, and the checkpoint's own for a quantized
    folder.
    """
    if row.method == STORED:
        from lutlab.checkpoint.stored import row_width

        return row_width(_named(row.model))
    return quantizer.check_width(row.q, row.g) if quantizer.quantizes else (16, -1)


def _named(spec: ModelSpec) -> ModelSpec:
    """A folder is named by its last part, as whole paths do not fit a table; a cut model says to how many layers."""
    if spec.source == "folder" and spec.name == spec.id:
        return dataclasses.replace(spec, name=PurePath(spec.id).name)
    if spec.source == "synthetic" and spec.name == f"synthetic-{spec.id}":
        cut = f", {spec.layers} layers" if spec.layers else ""
        packed = ", packed" if spec.packed else ""
        return dataclasses.replace(spec, name=f"synthetic-{PurePath(spec.id).name}{cut}{packed}")
    return spec


def _calibration(row: Row) -> CalibrationSpec:
    drawn = row.calibration
    text = text_of(drawn.text, row.data)
    return CalibrationSpec(text, drawn.samples, drawn.seqlen, drawn.seed)


def _own_widths(row: Row) -> list[tuple[str, Bits, int]]:
    """Kinds of sub-layer that have a width of their own, with it."""
    widths = []
    for kind, width in sorted(vars(row.sublayers).items()):
        q, g = row.q if width.q is None else width.q, row.g if width.g is None else width.g
        widths += [(kind, q, g)] if (q, g) != (row.q, row.g) else []
    return widths


def _sublayers(row: Row, quantizer: Method) -> tuple[Sublayer, ...]:
    return tuple(Sublayer(kind, *quantizer.check_width(q, g)) for kind, q, g in _own_widths(row))


def _candidates(row: Row, quantizer: Method) -> tuple[Width, ...]:
    """The widths that a budget may choose from for each layer; () without one."""
    if row.budget is None:
        return ()
    widths = itertools.product(map(whole, row.candidates.q), row.candidates.g)
    return tuple(dict.fromkeys(quantizer.check_width(q, g) for q, g in widths))


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name != "spread":
        return device_named(name)
    if not torch.cuda.is_available():
        raise LutlabError(
            "device=spread, but this machine has no CUDA device; use device=cpu or device=auto"
        )
    return name


def _dtype(name: str, device: str) -> str:
    if name == "auto":
        return "float32" if device == "cpu" else "float16"
    return name


def text_of(protocol: str, data: Data, *, tasks: bool = False) -> TextSpec:
    """Source of a column's text: the model, a user's file, the package, the folder data.root, or the preset's, perhaps
    a stand-in.

    tasks: the name may be that of a task of lm-eval; one without rows of ours is its own source.
    """
    if tasks:
        protocol = lm_eval.protocol_of(protocol)
        if not lm_eval.has_own_rows(protocol):
            return TextSpec(protocol, lm_eval.SOURCE)
    if protocol == OWN:
        return TextSpec(OWN, OWN)
    if protocol in data.text:
        return TextSpec(protocol, user.SOURCE, data.text[protocol])
    known = PROTOCOLS.get(protocol)
    if known and known.dataset in embedded.READERS:
        return TextSpec(protocol, "embedded")
    if data.root is not None:
        return TextSpec(folder.resolve(protocol, data.root), "folder", data.root)
    spec = TextSpec(data.stand_in.get(protocol, protocol), data.source)
    if spec.protocol not in PROTOCOLS:
        raise LutlabError(f"unknown text '{spec.protocol}': {nearest(spec.protocol, PROTOCOLS)}")
    return spec
