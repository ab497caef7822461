"""Row -> the run that it asks for: a model quantized one way, or a product; every value in range, or refused."""

from __future__ import annotations

import dataclasses
from pathlib import PurePath

from lutlab import registry
from lutlab.compress.widths import layer_widths
from lutlab.data import folder
from lutlab.data import tasks as lm_eval
from lutlab.data.protocols import PROTOCOLS
from lutlab.devices import device_named
from lutlab.errors import LutlabError, nearest
from lutlab.experiment.row.row import Data, Row
from lutlab.fields import default_of
from lutlab.groups import Width, whole
from lutlab.kernels.gpu.variants import full_name
from lutlab.lazy import torch
from lutlab.measure import products
from lutlab.quantizers.contract import Calibrated, Method
from lutlab.quantizers.stored import STORED
from lutlab.specs import (
    CalibrationSpec,
    ModelRun,
    ModelSpec,
    ProductRun,
    RunSpec,
    Sublayer,
    TextSpec,
    Tuning,
)

# Fields of a row that a product of matrices does not read.
_OF_LAYERS = ("budget", "layers", "skip", "sublayers", "tuning", "stream")


def run_of(row: Row) -> RunSpec:
    """The run that a row asks for.

    Raises:
        LutlabError: q or g out of range, no such device here, a budget for what has no widths to choose, tuning of
            what cannot be tuned, layers cut of a model that is not synthetic, a commit of one that is not on the hub,
            or settings of layers for a product.
    """
    quantizer = registry.lookup("method", row.method)(**dict(row.options))  # refuses
    device = _device(row.device)
    asked = {
        "method": row.method,
        "options": row.options,
        "device": device,
        "dtype": _dtype(row.dtype, device),
        "seed": row.seed,
    }
    if not row.model.id:
        raise LutlabError(
            f"model.id is not given: name a model or its folder, of a product its shape (source "
            f"{row.model.source})"
        )
    if row.model.source == "product":
        return _product(row, quantizer, asked)
    if row.kernel != "auto" or row.all_knobs:
        named = f"kernel={row.kernel}" if row.kernel != "auto" else row.all_knobs[0][0]
        raise LutlabError(f"{named} is of a single product: set model=product")
    candidates = _candidates(row, quantizer)
    q, g = (max(q for q, _ in candidates), -1) if candidates else _width(row, quantizer)
    drawn = _is_drawn(row)
    looks = candidates or row.tuning or (isinstance(quantizer, Calibrated) and not drawn)
    return ModelRun(
        model=_model(row.model),
        q=q,
        g=g,
        calibration=_calibration(row) if looks else None,
        sublayers=_sublayers(row, quantizer) if quantizer.quantizes else (),
        budget=row.budget,
        candidates=candidates,
        skip=row.skip if quantizer.quantizes else (),
        layers=layer_widths(row.layers or {}, quantizer) if quantizer.quantizes else (),
        tuning=_tuning(row, quantizer),
        **asked,
    )


def _is_drawn(row: Row) -> bool:
    """Whether layers are drawn as they are stored, so that no quantizer sees a weight; refuses what needs one."""
    if not row.model.packed:
        return False
    asked = {
        "budget": row.budget is not None,
        "tuning": row.tuning is not None,
        "stream": row.stream,
        "device=spread": row.device == "spread",
    }
    if named := [key for key, is_asked in asked.items() if is_asked]:
        raise LutlabError(
            f"model.packed draws layers as they are stored, in the memory of one device, and has no weights to choose "
            f"widths by or to train: drop {named[0]}, or model.packed"
        )
    return True


def _product(row: Row, quantizer: Method, asked: dict[str, object]) -> ProductRun:
    """A product has one weight, and nothing to calibrate on."""
    _refuse_of_layers(row)
    q, g = _width(row, quantizer)
    shapes = products.parse_shapes(row.model.id)
    return ProductRun(
        shapes=shapes, q=q, g=g, kernel=full_name(row.kernel), knobs=row.all_knobs, **asked
    )


def _refuse_of_layers(row: Row) -> None:
    """Raise LutlabError for settings of a model's layers, which a product does not have."""
    default = {field.name: default_of(field) for field in dataclasses.fields(Row)}
    given = [name for name in _OF_LAYERS if getattr(row, name) != default[name]]
    if named := [*given, *(f"model.{name}" for name in row.model.changed())]:
        raise LutlabError(
            f"{named[0]}= is of a model, and {row.model.id} is a single product (model=product): drop it"
        )


def _width(row: Row, quantizer: Method) -> Width:
    """(q, g) of a row: 16 and -1 in full precision, whatever the row says, and the checkpoint's own for a quantized
    folder.
    """
    if row.method == STORED:
        return _stored_width(row)
    return quantizer.check_width(row.q, row.g) if quantizer.quantizes else (16, -1)


def _stored_width(row: Row) -> Width:
    from lutlab.checkpoint.stored import row_width

    if row.stream or row.device == "spread":
        asked = "stream=true" if row.stream else "device=spread"
        raise LutlabError(f"method=stored holds the whole model on one device: drop {asked}")
    return row_width(_model(row.model))


def _model(spec: ModelSpec) -> ModelSpec:
    """A folder is named by its last part, as whole paths do not fit a table; a cut model says to how many layers."""
    if spec.layers and spec.source != "synthetic":
        raise LutlabError(
            f"model.layers={spec.layers} cuts synthetic models only, and {spec.name} is of source {spec.source}: give "
            f"model=synthetic model.id={spec.id}, or drop model.layers"
        )
    if spec.packed and spec.source != "synthetic":
        raise LutlabError(
            f"model.packed=true draws the layers of synthetic models only, and {spec.name} is of source {spec.source}: "
            f"give model=synthetic model.id={spec.id}, or drop model.packed"
        )
    if spec.revision is not None and spec.source in ("embedded", "folder"):
        raise LutlabError(
            f"model.revision={spec.revision} is a commit on the hub, and {spec.name} is of source {spec.source}, whose "
            "files are here: drop it, or write model.revision=null where the preset has one"
        )
    if spec.source == "folder" and spec.name == spec.id:
        return dataclasses.replace(spec, name=PurePath(spec.id).name)
    if spec.source == "synthetic" and spec.name == f"synthetic-{spec.id}":
        cut = f", {spec.layers} layers" if spec.layers else ""
        packed = ", packed" if spec.packed else ""
        return dataclasses.replace(spec, name=f"synthetic-{PurePath(spec.id).name}{cut}{packed}")
    return spec


def _calibration(row: Row) -> CalibrationSpec:
    chosen = row.calibration
    text = text_of(chosen.text, row.data)
    return CalibrationSpec(text, chosen.samples, chosen.seqlen, chosen.seed)


def _sublayers(row: Row, quantizer: Method) -> tuple[Sublayer, ...]:
    """Kinds of sub-layer that have a width of their own."""
    own = []
    for kind, width in sorted(vars(row.sublayers).items()):
        q = row.q if width.q is None else width.q
        g = row.g if width.g is None else width.g
        if (q, g) != (row.q, row.g):
            own.append(Sublayer(kind, *quantizer.check_width(q, g)))
    return tuple(own)


def _candidates(row: Row, quantizer: Method) -> tuple[Width, ...]:
    """The widths that a budget may choose from for each layer; () without one."""
    budget = row.budget
    if budget is None:
        return ()
    if not quantizer.quantizes:
        raise LutlabError(f"method={row.method} has no widths to choose: drop budget={budget}")
    if row.stream:
        raise LutlabError("budget tries widths out on copies of the model: drop stream=true")
    if own := _sublayers(row, quantizer):
        raise LutlabError(
            f"budget chooses the widths of all layers: drop sublayers.{own[0].kind} or the budget"
        )
    if row.layers:
        raise LutlabError("budget chooses the widths of all layers: drop layers or the budget")
    bits = map(whole, row.candidates.q)
    found = [quantizer.check_width(q, g) for q in bits for g in row.candidates.g]
    if not found:
        raise LutlabError(
            "budget needs widths to choose from: candidates.q or candidates.g is empty"
        )
    return tuple(dict.fromkeys(found))


def _tuning(row: Row, quantizer: Method) -> Tuning | None:
    if row.tuning is None:
        return None
    from lutlab.tuning.stages import check_tunable

    check_tunable(quantizer, row.tuning)
    if row.stream:
        raise LutlabError("tuning moves all weights of the model at once: drop stream=true")
    if row.model.task and row.tuning.loss != "labels":
        raise LutlabError(
            f"tuning.loss={row.tuning.loss} learns from the full-precision model's classes, and its head is drawn "
            "(model.task): give tuning.loss=labels"
        )
    return row.tuning


def _device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted != "spread":
        return device_named(wanted)
    if not torch.cuda.is_available():
        raise LutlabError(
            "device=spread, but this machine has no CUDA device; use device=cpu or device=auto"
        )
    return wanted


def _dtype(wanted: str, device: str) -> str:
    if wanted == "auto":
        return "float32" if device == "cpu" else "float16"
    return wanted


def text_of(protocol: str, data: Data, *, tasks: bool = False) -> TextSpec:
    """Source of a column's text: the folder data.root if given, else the preset, which may name a stand-in.

    tasks: the name may be that of a task of lm-eval; one without rows of ours is its own source.
    """
    if tasks:
        protocol = lm_eval.protocol_of(protocol)
        if not lm_eval.has_own_rows(protocol):
            return TextSpec(protocol, lm_eval.SOURCE)
    if data.root is not None:
        return TextSpec(folder.resolve(protocol, data.root), "folder", data.root)
    spec = TextSpec(data.stand_in.get(protocol, protocol), data.source)
    if spec.protocol not in PROTOCOLS:
        raise LutlabError(f"unknown text '{spec.protocol}': {nearest(spec.protocol, PROTOCOLS)}")
    return spec
