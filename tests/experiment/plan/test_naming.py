"""Names of sweeps and rows: whatever differs names a row, and two sweeps never share a folder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.experiment.row.composing import settings

from lutlab.errors import LutlabError
from lutlab.experiment.plan.free import labels_of, row_key, sweep_name, varied
from lutlab.experiment.row.run import run_of


def rows(*lines: str):
    found = [settings(*line.split()) for line in lines]
    return [(run_of(one), one) for one in found]


@pytest.mark.parametrize(
    ("one", "other", "axis"),
    [
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
    ],
)  # fmt: skip
def test_what_differs_names_the_row(one, other, axis):
    both = labels_of(rows(one, other))
    assert axis in both[0]
    assert row_key(both[0]) != row_key(both[1])
    assert list(labels_of(rows(one))[0]) == ["Model", "Method", "q", "g"]


def test_what_one_method_has_and_another_has_not_is_no_difference():
    found = labels_of(
        rows("method=rtn", "method=bcq", "method=none", "method=bcq method.offset=true")
    )
    assert list(found[0]) == ["Model", "Method", "q", "g", "method.offset"]
    assert [one["method.offset"] for one in found] == ["", "false", "", "true"]
    (alone,) = labels_of(rows("method=bcq method.offset=true"))
    assert alone["Method"] == "bcq(offset=true)"


def test_a_sweep_is_named_by_its_axes_and_its_id():
    some = rows("method=none", "q=2", "q=3")
    assert sweep_name(some, "0123456789") == "q-01234567"
    assert sweep_name(rows("q=3 g=64"), "0123456789") == "rtn-3-64-01234567"
    assert settings("name=mine").name == "mine"
    for odd in ("'../mine'", "a" * 101, "-a"):
        with pytest.raises(LutlabError, match="as it names a folder"):
            settings(f"name={odd}")


ROW = st.fixed_dictionaries(
    {"model": st.sampled_from("ab"), "method": st.sampled_from("xy"), "q": st.integers(2, 3)},
    optional={"seed": st.integers(0, 1)},
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "model": st.sampled_from("ab"),
                "method": st.sampled_from("xy"),
                "q": st.integers(2, 3),
            },
            optional={"seed": st.integers(0, 1)},
        ),
        min_size=1,
        max_size=5,
    )
)
def test_rows_that_are_alike_in_what_varies_are_alike(found):
    shown = varied(found)
    named = {tuple(row.get(name) for name in ("method", *shown)) for row in found}
    assert len(named) == len({tuple(sorted(row.items(), key=str)) for row in found})
