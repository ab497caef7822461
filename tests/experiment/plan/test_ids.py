"""An id holds all that decides a number, and nothing that does not."""

import dataclasses
import functools
import importlib.metadata
import json
from types import SimpleNamespace

import pytest

from lutlab.base import registry, specs
from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec, ProductRun, TextSpec, Tuning
from lutlab.data import protocols
from lutlab.experiment.plan import resolve
from lutlab.experiment.plan.ids import Resolved, cell_identity, inputs_id, quantized_id
from lutlab.experiment.plan.resolve import Files, look
from lutlab.experiment.store import components
from lutlab.experiment.store.record import content_id
from lutlab.kernels.cpu.qigen import qigen_gemv
from lutlab.kernels.cpu.rows import rows_tuning
from lutlab.kernels.gpu import choice
from lutlab.kernels.gpu.choice import Race

MODEL = ModelSpec("opt-embedded-s", "embedded", "opt-embedded-s")
TRAIN = specs.CalibrationSpec(TextSpec("pydocs-train", "embedded"), 2, 32, 0)
PAIRS = specs.CalibrationSpec(TextSpec("missing-word-train", "embedded"), 2, 32, 0)
ROW = ModelRun(MODEL, "rtn", 4, 128)
GPTQ = ModelRun(MODEL, "gptq", 4, 128, calibration=TRAIN)
PRODUCT = ProductRun(((96, 64, 1),), "rtn", 4, 32)
PPL = EvalSpec("ppl", TextSpec("passages-joined", "embedded"))
ERROR, LATENCY = EvalSpec("weight_error"), EvalSpec("kernel_latency")
WHOLE = {"method": "none", "q": 16, "g": -1}
BUDGET = {"budget": 3.0, "candidates": ((2, -1), (4, -1))}
FILES = Files()
TUNED = {"panel_columns": 512, "prefetch_bytes": 4096}


def changed(row=ROW, **fields):
    return dataclasses.replace(row, **fields)


CELLS = {
    "row": (ROW, ERROR),
    "ppl": (ROW, PPL),
    "speed": (ROW, EvalSpec("generation")),
    "gptq": (GPTQ, ERROR),
    "coarse": (changed(method="gptq_bcq", options=(("alpha_bits", 4),), calibration=TRAIN), ERROR),
    "full": (changed(**WHOLE), ERROR),
    "product": (PRODUCT, LATENCY),
    "optq": (changed(PRODUCT, kernel="optq"), LATENCY),
    "qigen": (ROW, EvalSpec("qigen")),
    "searched": (changed(**BUDGET, calibration=TRAIN), ERROR),
    "tuned": (changed(tuning=Tuning(8), calibration=TRAIN), ERROR),
    "whole": (changed(**WHOLE, tuning=Tuning(8), calibration=TRAIN), ERROR),
    "labels": (changed(method="bcq", tuning=Tuning(8, trains="scales"), calibration=PAIRS), ERROR),
}


def resolved(spec, evaluation=ERROR) -> Resolved:
    """A row of one cell with its hashes, of two threads; files are read once for all tests."""
    text = evaluation.text
    texts = {text: FILES.text(text).sha256} if text else {}
    return look(Resolved(spec, {"only": evaluation}, texts=texts), 2, FILES)


def cell_id(spec, evaluation) -> str:
    identity = cell_identity(resolved(spec, evaluation), evaluation)
    assert json.loads(json.dumps(identity)) == identity
    return content_id(identity)


def distinct(*cells) -> int:
    return len({cell_id(*cell) for cell in cells})


def ids() -> dict[str, str]:
    """Of every cell, and of what is kept for GPTQ's."""
    cells = {name: cell_id(*cell) for name, cell in CELLS.items()}
    return cells | {"kept": quantized_id(resolved(GPTQ)), "inputs": inputs_id(resolved(GPTQ))}


before = functools.cache(ids)


def moved() -> set[str]:
    now = ids()
    return {name for name in now if now[name] != before()[name]}


def test_what_is_asked_for_is_in_it() -> None:
    changes = [
        {"q": 3}, {"g": 32}, {"method": "bcq"}, {"options": (("variant", "awq"),)}, {"dtype": "float16"}, {"seed": 1},
        {"skip": ("*.0.*",)}, {"model": dataclasses.replace(MODEL, id="opt-embedded-m")}, {"calibration": TRAIN},
        {"model": dataclasses.replace(MODEL, task="sequence_classification")}, BUDGET,
        {"model": ModelSpec("s", "synthetic", MODEL.id)}, {"model": ModelSpec("s", "synthetic", MODEL.id, packed=True)},
        {"tuning": Tuning(8)}, {"tuning": Tuning(8, loss="labels")},
    ]  # fmt: skip
    cells = [(ROW, ERROR), (ROW, PPL), *((changed(**change), ERROR) for change in changes)]
    texts = (TextSpec("topics", "embedded"), dataclasses.replace(PPL.text, limit=1))
    cells += [(ROW, dataclasses.replace(PPL, text=text)) for text in texts]
    cells += [(ROW, dataclasses.replace(PPL, options=(("loss_dtype", "float16"),)))]
    assert distinct(*cells) == len(cells)


@pytest.mark.parametrize("rows", [
    (ROW, changed(model=dataclasses.replace(MODEL, name="another name"))),
    (ROW, changed(options=(("scale_dtype", "fp16"), ("variant", "gptq")))),
    (changed(tuning=Tuning(8)), changed(tuning=Tuning(8, batch=Tuning.batch))),
    (changed(device="cuda:0"), changed(device="cuda:1")),
])  # fmt: skip
def test_a_name_a_gpu_number_and_a_default_are_not(rows) -> None:
    assert distinct(*((row, ERROR) for row in rows)) == 1


def test_defaults_of_a_run_stay_as_they_are() -> None:
    """They are in no id: with another default, old numbers would be taken for new ones."""
    common = {"options": (), "device": "cpu", "dtype": "float32", "seed": 0}
    model = {"calibration": None, "sublayers": (), "budget": None, "candidates": (), "skip": ()}
    model |= {"layers": (), "tuning": None}
    for run, own in ((ROW, model), (PRODUCT, {"kernel": "auto", "knobs": ()})):
        given = ("model", "shapes", "method", "q", "g")
        assert {k: v for k, v in vars(run).items() if k not in given} == common | own


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_a_minor_version_of_a_library_is_in_it_and_a_patch_is_not(name, monkeypatch) -> None:
    """Of torch in every one, of transformers in those of what times its code."""
    installed = importlib.metadata.version

    def ids_with(version: str) -> dict[str, str]:
        known = {name: version}.get
        monkeypatch.setattr(importlib.metadata, "version", lambda n: known(n) or installed(n))
        return ids()

    first, patch, minor = map(ids_with, ("7.1.0", "7.1.4+cpu", "7.2.0"))
    assert first == patch
    resting = {*first} if name == "torch" else {"speed", "qigen"}
    assert {n for n in first if first[n] != minor[n]} == resting


# component -> which of the ids change with its version
VERSIONS = {
    "method/rtn": "row ppl speed qigen searched tuned",
    "method/gptq": "gptq kept",
    "format/uniform": "row ppl speed gptq qigen searched tuned kept",
    "format/bcq": "labels",
    "format/bcq_second_order": "coarse",
    "format/uniform_second_order": "",
    "evaluator/ppl": "ppl",
    "evaluator/lambada": "",
    "protocol/passages-joined": "ppl",
    "protocol/pydocs-train": "gptq coarse searched tuned whole kept inputs",
    "driver": "row ppl speed gptq coarse full qigen searched tuned whole labels kept inputs",
    "models": "row ppl speed gptq coarse full qigen searched tuned whole labels kept inputs",
    "search": "searched",
    "tuning": "tuned",
    "tuning/whole": "whole",
    "tuning/labels": "labels",
    "kernel/bcq_gemv": "row ppl speed gptq coarse qigen searched tuned labels kept",
    "kernel/uniform_gemv": "row ppl speed gptq qigen searched tuned kept",
    "kernel/lut_gemv": "",
    "measure": "product optq",
}


@pytest.mark.parametrize("name", VERSIONS)
def test_a_raised_version_makes_the_cells_new_that_rest_on_it(name, monkeypatch) -> None:
    before()
    group, _, key = name.partition("/")
    if group in components._ROOMS:
        cls = registry.lookup(group, key)
        monkeypatch.setattr(cls, "version", cls.version + 1)
    else:
        holder = protocols.PROTOCOLS if group == "protocol" else components._PARTS
        key = key if group == "protocol" else name
        monkeypatch.setitem(
            holder, key, dataclasses.replace(holder[key], version=holder[key].version + 1)
        )
    assert moved() == set(VERSIONS[name].split())


def tuned(key: str):
    return lambda patch: patch.setattr(rows_tuning, "_read", lambda: {f"v, avx2, {key}": TUNED})


SEARCHED = dict.fromkeys((4, 3), qigen_gemv.DEFAULT)


@pytest.mark.parametrize(("change", "names"), [
    (tuned("q=4, g=32, 96x64, 2 threads"), "speed qigen product optq"),
    (tuned("q=4, g=32, 96x96, 2 threads"), "speed qigen"),
    (tuned("q=3, g=32, 96x64, 2 threads"), ""),
    (tuned("q=4, g=32, 96x64, 4 threads"), ""),
    # what it will find is not known yet
    (lambda patch: patch.setenv("LUTLAB_TUNE", "1"), "speed qigen product optq"),
    (lambda patch: patch.setattr(qigen_gemv, "_searched", lambda: SEARCHED), "optq qigen"),
    (lambda patch: patch.setattr(resolve, "kernels_fingerprint", str), "speed qigen product optq"),
])  # fmt: skip
def test_speeds_alone_hold_kernels_and_what_was_tuned_for_them(change, names, monkeypatch) -> None:
    before()
    monkeypatch.setattr(rows_tuning, "_read", dict)
    change(monkeypatch)
    assert moved() == set(names.split())


def test_a_tuned_key_is_read_as_it_is_written(monkeypatch) -> None:
    weight = SimpleNamespace(bits=4, group_size=32, shape=(96, 64))
    kernel = SimpleNamespace(variant="bcq lut int24", isa="avx2", threads=lambda given: given or 2)
    key = rows_tuning._key(kernel, weight, 2)
    monkeypatch.setattr(rows_tuning, "_read", lambda: {key: TUNED})
    assert rows_tuning.decisions({4}, 2, {(96, 64)}) == {key: TUNED}


def test_of_a_race_the_order_counts(monkeypatch) -> None:
    def race(bits: int = 4, gpu: str = "G", **seconds: float) -> Race:
        return Race(gpu, "float16", True, bits, 128, (96, 64), {1: seconds})

    def decided(*races: Race) -> str:
        monkeypatch.setattr(choice, "_read", lambda path: list(races))
        return json.dumps(choice.decisions("G", "float16", {4}))

    kept = decided(race(r1=1.0, r2=2.0))
    assert decided() == "[]"
    assert decided(race(r1=1.5, r2=3.0)) == kept
    assert decided(race(r1=1.0, r2=2.0), race(bits=3, r1=1.0), race(gpu="H", r1=1.0)) == kept
    assert decided(race(r1=2.0, r2=1.0)) != kept
