"""Names of sweeps and rows: whatever differs names a row, and two sweeps never share a folder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.base.refusals import refused
from tests.experiment.row.composing import settings

from lutlab.experiment.plan import free
from lutlab.experiment.plan.free import labels_of, row_key, sweep_name, varied
from lutlab.experiment.row import mistakes
from lutlab.experiment.row.row import row_keys
from lutlab.experiment.row.run import run_of


def rows(*lines: str):
    composed = [settings(*line.split()) for line in lines]
    return [(run_of(row), row) for row in composed]


@pytest.mark.parametrize(("first", "second", "axis"), [
    ("seed=1", "seed=2", "seed"),
    ("method=gptq calibration.samples=2", "method=gptq calibration.samples=3", "calibration.samples"),
    ("dtype=float32", "dtype=bfloat16", "dtype"),
    ("method=bcq method.offset=true", "method=bcq method.offset=false", "method.offset"),
    ("sublayers.attention.q=3", "sublayers.attention.q=4 sublayers.attention.g=8", "sublayers.attention.q"),
    ("skip=['*.0.*']", "skip=[]", "skip"),
    ("threads=1", "threads=2", "threads"),
    ("model=folder model.id=a/m", "model=folder model.id=b/m", "model.id"),
    ("evaluator.ppl.loss_dtype=float16", "evaluator.ppl.loss_dtype=float32", "evaluator.ppl.loss_dtype"),
    ("model=product model.id=8x8 kernel=optq", "model=product model.id=8x8", "kernel"),
])  # fmt: skip
def test_what_differs_names_the_row(first, second, axis):
    both = labels_of(rows(first, second))
    assert axis in both[0]
    assert row_key(both[0]) != row_key(both[1])
    assert list(labels_of(rows(first))[0]) == ["Model", "Method", "q", "g"]


def test_what_one_method_has_and_another_has_not_is_no_difference():
    offset = "method=bcq method.offset=true"
    labels = labels_of(rows("method=rtn", "method=bcq", "method=none", offset))
    assert list(labels[0]) == ["Model", "Method", "q", "g", "method.offset"]
    assert [row["method.offset"] for row in labels] == ["", "false", "", "true"]
    (alone,) = labels_of(rows(offset))
    assert alone["Method"] == "bcq(offset=true)"


def test_a_sweep_is_named_by_its_axes_and_its_id():
    assert sweep_name(rows("method=none", "q=2", "q=3"), "0123456789") == "q-01234567"
    assert sweep_name(rows("q=3 g=64"), "0123456789") == "rtn-3-64-01234567"
    assert settings("name=mine").name == "mine"
    for odd in ("'../mine'", "a" * 101, "-a"):
        refused("as it names a folder", settings, f"name={odd}")


ALWAYS = {"model": st.sampled_from("ab"), "method": st.sampled_from("xy"), "q": st.integers(2, 3)}
ROW = st.fixed_dictionaries(ALWAYS, optional={"seed": st.integers(0, 1)})


@given(st.lists(ROW, min_size=1, max_size=5))
def test_rows_that_are_alike_in_what_varies_are_alike(rows):
    shown = varied(rows)
    named = {tuple(row.get(name) for name in ("method", *shown)) for row in rows}
    assert len(named) == len({tuple(sorted(row.items(), key=str)) for row in rows})


TUNED, BLOCKS = "method=gptq_bcq tuning.trains=scales tuning.steps=1", "tuning.block_steps=1"
SYNTHETIC, PRODUCT = "model=synthetic model.id=opt-embedded-s", "model=product model.id=64x64"
# Key that makes rows -> what stands beside it, and two of its values. All other keys are of a whole call.
SWEPT = {
    "q": ("", "3", "4"),
    "g": ("", "16", "32"),
    "budget": ("", "3.5", "4"),
    "layers": ("", "{*.0.*: [3, 64]}", "{*.0.*: [2, 64]}"),
    **{f"sublayers.{kind}.q": ("", "2", "3") for kind in ("attention", "feed_forward")},
    **{f"sublayers.{kind}.g": ("", "16", "32") for kind in ("attention", "feed_forward")},
    "calibration.text": ("method=gptq data=hub", "wikitext2-train", "c4-train"),
    "calibration.samples": ("method=gptq", "4", "8"),
    "calibration.seqlen": ("method=gptq", "16", "32"),
    "calibration.seed": ("method=gptq", "1", "2"),
    "tuning.steps": ("method=gptq_bcq tuning.trains=scales", "1", "2"),
    "tuning.learning_rate": (TUNED, "0.5", "0.25"),
    "tuning.batch": (TUNED, "2", "4"),
    "tuning.samples": (TUNED, "2", "4"),
    "tuning.loss": (TUNED, "labels", "distribution"),
    "tuning.seed": (TUNED, "1", "2"),
    "tuning.weight_decay": (TUNED, "0.5", "0.25"),
    "tuning.block_steps": (TUNED, "1", "2"),
    "tuning.block_learning_rate": (f"{TUNED} {BLOCKS}", "0.5", "0.25"),
    "device": ("", "cpu", "cuda"),
    "dtype": ("", "float32", "bfloat16"),
    "threads": ("", "1", "2"),
    "seed": ("", "1", "2"),
    "kernel": (PRODUCT, "auto", "optq"),
    "knobs.luts": (f"{PRODUCT} kernel=lane_tables", "2", "4"),
    "mu": (f"{PRODUCT} kernel=lane_tables", "4", "8"),
    "model.id": ("model=folder", "a/m", "b/m"),
    "model.name": ("", "a", "b"),
    "model.source": ("model=folder model.id=a/m", "hub", "folder"),
    "model.revision": ("model=opt-125m", "a", "b"),
    "model.layers": (SYNTHETIC, "1", "2"),
    "model.packed": (SYNTHETIC, "true", "false"),
    "model.task": ("model=folder model.id=a/m", "null", "sequence_classification"),
}
# knobs have keys of their own, and a method takes one value of tuning.trains alone.
OTHERS = {"knobs", "tuning.trains", "candidates.q", "candidates.g", "skip"}


@pytest.mark.parametrize("key", SWEPT)
def test_a_swept_key_makes_rows_with_names_of_their_own(key, monkeypatch):
    monkeypatch.setattr("lutlab.experiment.row.run.device_named", str)  # no GPU need be here
    beside, *values = SWEPT[key]
    lines = [mistakes.read([*beside.split(), f"{key}={value}"]) for value in values]
    labels = labels_of([(run_of(row), row) for row in (settings(*line) for line in lines)])
    assert row_key(labels[0]) != row_key(labels[1])


@pytest.mark.parametrize("key", sorted({*row_keys()} - SWEPT.keys() - OTHERS))
def test_a_key_of_the_whole_call_is_not_swept(key):
    for values in ("1,8", "a,b", "true,false", "run,plan", "none,offline", "embedded,hub"):
        refused(key.replace(".", r"\."), mistakes.read, [f"{key}={values}"])


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b"[" * 100_000, b"\xff", None])
def test_a_damaged_mark_is_named_and_set_aside(damage, tmp_path, caplog):
    mark = tmp_path / free.MARK
    assert free._marked(mark) is None
    mark.mkdir() if damage is None else mark.write_bytes(damage)
    assert free._marked(mark) is None
    (line,) = caplog.messages
    assert "sweep.json is damaged" in line
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json.damaged"]
    free.mark(tmp_path, (), "python run.py q=3")
    assert free._marked(mark)[1] == "python run.py q=3"
