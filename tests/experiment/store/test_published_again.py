"""Published qualities measured again, by the newest transformers in tests/newest.sh: it is in no id of theirs.

Of methods without calibration: where another processor's products differ in their last bits, these follow by as little,
and calibrated ones by a code here and there.
"""

import pytest
from tests.conftest import ROOT

from lutlab.experiment.records import prune
from lutlab.experiment.row.spelling import evaluation_from, overrides_of, run_from
from lutlab.experiment.store.record import LINES, read_lines

CELLS = [
    ("lut-gemm-v3/table4", "none", "ppl"),
    ("lut-gemm-v3/table4", "rtn", "ppl"),
    ("lut-gemm-v3/table4", "rtn", "lambada"),
    pytest.param("lutlab/binary_and_uniform", "bcq", "ppl", marks=pytest.mark.slow),
    pytest.param("lut-gemm-iclr2024/table9", "none", "zero_shot", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("artifact", "method", "evaluator"), CELLS)
def test_a_quality_is_that_of_its_record(artifact, method, evaluator, command) -> None:
    records = [
        (r.seconds, r.cell_id, r)
        for path in ROOT.glob(f"results/published/*/{artifact}/{LINES}")
        for r in read_lines(path).values()
        if (r.run["method"], r.evaluation["evaluator"]) == (method, evaluator)
        and r.run["model"]["source"] == r.evaluation["text"]["source"] == "embedded"
        and not prune.moved(r)
    ]
    *_, record = min(records)
    line = overrides_of(run_from(record.run), evaluation_from(record.evaluation), None)
    outcome = command(*line, "logger=none", "baseline=false")
    assert outcome.code == 0, outcome.err
    assert command.records()[record.cell_id]["values"] == pytest.approx(record.values, rel=1e-5)
