"""An id holds all that decides a number, and nothing that does not."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from typing import Any

import pytest

from lutlab.base import registry
from lutlab.base.specs import (
    CalibrationSpec,
    EvalSpec,
    ModelRun,
    ModelSpec,
    ProductRun,
    RunSpec,
    TextSpec,
    Tuning,
)
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
TRAIN = CalibrationSpec(TextSpec("pydocs-train", "embedded"), 2, 32, 0)
ROW = ModelRun(MODEL, "rtn", 4, 128)
PAIRS = CalibrationSpec(TextSpec("missing-word-train", "embedded"), 2, 32, 0)
GPTQ = ModelRun(MODEL, "gptq", 4, 128, calibration=TRAIN)
PRODUCT = ProductRun(((96, 64, 1),), "rtn", 4, 32)
PPL = EvalSpec("ppl", TextSpec("passages-joined", "embedded"))
ERROR, SPEED, LATENCY = EvalSpec("weight_error"), EvalSpec("generation"), EvalSpec("kernel_latency")
FILES = Files()
TUNED = {"panel_columns": 512, "prefetch_bytes": 4096}


def ids_of(*cells: tuple[RunSpec, EvalSpec]) -> list[str]:
    """Ids with two threads, in order."""
    return [content_id(identity(spec, evaluation)) for spec, evaluation in cells]


def resolved(spec: RunSpec, evaluation: EvalSpec = ERROR, threads: int | None = 2) -> Resolved:
    """A row of one cell with its hashes; files are read once for all tests."""
    text = evaluation.text
    texts = {text: FILES.text(text).sha256} if text else {}
    return look(Resolved(spec, {"only": evaluation}, texts=texts), threads, FILES)


def identity(spec: RunSpec, evaluation: EvalSpec) -> dict[str, Any]:
    return cell_identity(resolved(spec, evaluation), evaluation)


def test_what_is_asked_for_is_in_it() -> None:
    changes = [
        {"q": 3}, {"g": 32}, {"method": "bcq"}, {"options": (("variant", "awq"),)}, {"dtype": "float16"}, {"seed": 1},
        {"skip": ("*.0.*",)}, {"model": dataclasses.replace(MODEL, id="opt-embedded-m")},
        {"budget": 3.0, "candidates": ((2, -1), (4, -1))}, {"calibration": TRAIN},
        {"model": dataclasses.replace(MODEL, task="sequence_classification")},
        {"model": ModelSpec("s", "synthetic", MODEL.id)}, {"model": ModelSpec("s", "synthetic", MODEL.id, packed=True)},
        {"tuning": Tuning(8)}, {"tuning": Tuning(8, loss="labels")},
    ]  # fmt: skip
    cells = [(ROW, ERROR), *((dataclasses.replace(ROW, **one), ERROR) for one in changes)]
    cells += [(ROW, PPL), (ROW, dataclasses.replace(PPL, options=(("loss_dtype", "float16"),)))]
    cells += [(ROW, dataclasses.replace(PPL, text=TextSpec("topics", "embedded")))]
    cells += [(ROW, dataclasses.replace(PPL, text=dataclasses.replace(PPL.text, limit=1)))]
    assert len(set(ids_of(*cells))) == len(cells)


def test_a_name_a_gpu_number_and_a_default_are_not() -> None:
    named = dataclasses.replace(ROW, model=dataclasses.replace(MODEL, name="another name"))
    said = dataclasses.replace(ROW, options=(("scale_dtype", "fp16"), ("variant", "gptq")))
    assert len(set(ids_of((ROW, ERROR), (named, ERROR), (said, ERROR)))) == 1
    rows = (dataclasses.replace(ROW, tuning=t) for t in (Tuning(8), Tuning(8, batch=Tuning.batch)))
    assert len(set(ids_of(*((row, ERROR) for row in rows)))) == 1
    first, second = (dataclasses.replace(ROW, device=f"cuda:{n}") for n in (0, 1))
    assert len(set(ids_of((first, ERROR), (second, ERROR)))) == 1


def test_defaults_of_a_run_stay_as_they_are() -> None:
    """They are in no id: with another default, old numbers would be taken for new ones."""
    common = {"options": (), "device": "cpu", "dtype": "float32", "seed": 0}
    model = {"calibration": None, "sublayers": (), "budget": None, "candidates": (), "skip": ()}
    model |= {"layers": (), "tuning": None}
    for run, own in ((ModelRun, model), (ProductRun, {"kernel": "auto", "knobs": ()})):
        defaults = {f.name: f.default for f in dataclasses.fields(run)}
        known = {k: v for k, v in defaults.items() if v is not dataclasses.MISSING}
        assert known == common | own


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_a_minor_version_of_a_library_is_in_it_and_a_patch_is_not(name, monkeypatch) -> None:
    """Of torch in every one, of transformers in those of what times its code."""
    installed = importlib.metadata.version

    def ids_with(version: str) -> tuple[str, ...]:
        monkeypatch.setattr(
            importlib.metadata, "version", lambda n: version if n == name else installed(n)
        )
        quality = *ids_of((ROW, ERROR)), quantized_id(resolved(GPTQ)), inputs_id(resolved(GPTQ))
        return *ids_of((ROW, SPEED)), *quality

    before, patch, minor = map(ids_with, ("7.1.0", "7.1.4+cpu", "7.2.0"))
    assert before == patch
    moved = [old != new for old, new in zip(before, minor, strict=True)]
    assert moved == [True] + [name == "torch"] * 3


def raised(monkeypatch, name: str) -> None:
    """Raise the version of a component."""
    group, _, key = name.partition("/")
    if group in components._ROOMS:
        cls = registry.lookup(group, key)
        monkeypatch.setattr(cls, "version", cls.version + 1)
    elif group == "protocol":
        rule = dataclasses.replace(protocols.PROTOCOLS[key], version=2)
        monkeypatch.setitem(protocols.PROTOCOLS, key, rule)
    else:
        part = dataclasses.replace(components._PARTS[name], version=2)
        monkeypatch.setitem(components._PARTS, name, part)


# component -> which of the five ids below change with its version
CHANGES = {
    "method/rtn": "row ppl",
    "method/gptq": "gptq kept",
    "format/uniform": "row ppl gptq kept",
    "format/bcq": "",
    "evaluator/ppl": "ppl",
    "evaluator/lambada": "",
    "protocol/passages-joined": "ppl",
    "protocol/pydocs-train": "gptq kept inputs",
    "driver": "row ppl gptq kept inputs",
    "models": "row ppl gptq kept inputs",
    "search": "",
    "kernel/bcq_gemv": "row ppl gptq kept",
    "kernel/uniform_gemv": "row ppl gptq kept",
    "kernel/lut_gemv": "",
    "measure": "product",
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_raised_version_makes_the_cells_new_that_rest_on_it(name, monkeypatch) -> None:
    def every() -> dict[str, str]:
        cells = ids_of((ROW, ERROR), (ROW, PPL), (GPTQ, ERROR), (PRODUCT, LATENCY))
        found = dict(zip(("row", "ppl", "gptq", "product"), cells, strict=True))
        return found | {"kept": quantized_id(resolved(GPTQ)), "inputs": inputs_id(resolved(GPTQ))}

    before = every()
    raised(monkeypatch, name)
    after = every()
    assert {key for key in before if before[key] != after[key]} == set(CHANGES[name].split())


@pytest.mark.parametrize(("name", "rests"), [
    ("search", {"budget": 3.0, "candidates": ((2, -1), (4, -1)), "calibration": TRAIN}),
    ("tuning", {"tuning": Tuning(8), "calibration": TRAIN}),
    ("tuning/whole", {"method": "none", "q": 16, "g": -1, "tuning": Tuning(8), "calibration": TRAIN}),
    ("tuning/labels", {"method": "bcq", "tuning": Tuning(8, trains="scales"), "calibration": PAIRS}),
])  # fmt: skip
def test_a_raised_search_or_tuning_makes_its_rows_new(name, rests, monkeypatch) -> None:
    row = dataclasses.replace(ROW, **rests)
    before = ids_of((row, ERROR), (ROW, ERROR))
    raised(monkeypatch, name)
    after = ids_of((row, ERROR), (ROW, ERROR))
    assert (before[0] == after[0], before[1] == after[1]) == (False, True)


def test_full_precision_does_not_rest_on_kernels(monkeypatch) -> None:
    row = dataclasses.replace(ROW, method="none", q=16, g=-1)
    before = ids_of((row, ERROR))
    raised(monkeypatch, "kernel/bcq_gemv")
    assert ids_of((row, ERROR)) == before


def test_only_speeds_hold_the_fingerprint_of_kernels(monkeypatch) -> None:
    cells = [(ROW, ERROR), (ROW, PPL), (ROW, SPEED), (PRODUCT, LATENCY)]
    before = ids_of(*cells)
    monkeypatch.setattr(resolve, "kernels_fingerprint", lambda device: f"another {device}")
    assert [a == b for a, b in zip(before, ids_of(*cells), strict=True)] == [
        True,
        True,
        False,
        False,
    ]


def test_speeds_hold_what_was_tuned_for_them(monkeypatch) -> None:
    cells = [(ROW, ERROR), (ROW, SPEED), (PRODUCT, LATENCY)]
    untuned = ids_of(*cells)

    def same_with(key: str) -> list[bool]:
        monkeypatch.setattr(rows_tuning, "_read", lambda: {key: TUNED})
        return [a == b for a, b in zip(untuned, ids_of(*cells), strict=True)]

    assert same_with("v, avx2, q=4, g=32, 96x64, 2 threads") == [True, False, False]
    assert same_with("v, avx2, q=4, g=32, 96x96, 2 threads") == [True, False, True]
    assert same_with("v, avx2, q=3, g=32, 96x64, 2 threads") == [True, True, True]
    assert same_with("v, avx2, q=4, g=32, 96x64, 4 threads") == [True, True, True]
    monkeypatch.setattr(rows_tuning, "_read", dict)
    monkeypatch.setenv("LUTLAB_TUNE", "1")  # what it will find is not known yet
    assert [a == b for a, b in zip(untuned, ids_of(*cells), strict=True)] == [True, False, False]


def test_a_tuned_key_is_read_as_it_is_written() -> None:
    class Weight:
        bits, group_size, shape = 4, 32, (96, 64)

    class Kernel:
        variant, isa = "bcq lut int24", "avx2"

        def threads(self, threads: int | None) -> int:
            return threads or 2

    key = rows_tuning._key(Kernel(), Weight(), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_tuning, "_read", lambda: {key: TUNED})
        assert rows_tuning.decisions({4}, 2, {(96, 64)}) == {key: TUNED}


def test_qigens_search_counts_where_its_kernel_runs(monkeypatch) -> None:
    optq = dataclasses.replace(PRODUCT, kernel="optq")
    cells = [(PRODUCT, LATENCY), (optq, LATENCY), (ROW, EvalSpec("qigen"))]
    before = ids_of(*cells)
    monkeypatch.setattr(
        qigen_gemv, "_searched", lambda: {4: qigen_gemv.DEFAULT, 3: qigen_gemv.DEFAULT}
    )
    assert [a == b for a, b in zip(before, ids_of(*cells), strict=True)] == [True, False, False]


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


def test_an_identity_is_json() -> None:
    for cell in ((ROW, PPL), (GPTQ, ERROR), (PRODUCT, LATENCY), (ROW, SPEED)):
        found = identity(*cell)
        assert json.loads(json.dumps(found)) == found
