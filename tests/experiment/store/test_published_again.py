"""Published qualities measured again, by the newest transformers in tests/newest.sh: it is in no id of theirs.

Of methods without calibration: where another processor's products differ in their last bits, these follow by as little,
and calibrated ones by a code here and there.
"""

from __future__ import annotations

import pytest
from tests.conftest import ROOT

from lutlab.experiment.records import prune
from lutlab.experiment.row.spelling import evaluation_from, overrides_of, run_from
from lutlab.experiment.store.record import LINES, read_lines

MACHINE = ROOT / "results" / "published" / "amd-epyc-2cores"
CELLS = [
    ("lut-gemm-v3/table4", "none", "ppl"),
    ("lut-gemm-v3/table4", "rtn", "ppl"),
    ("lut-gemm-v3/table4", "rtn", "lambada"),
    pytest.param("lutlab/binary_and_uniform", "bcq", "ppl", marks=pytest.mark.slow),
    pytest.param("lut-gemm-iclr2024/table9", "none", "zero_shot", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("artifact", "method", "evaluator"), CELLS)
def test_a_quality_is_that_of_its_record(
    artifact: str, method: str, evaluator: str, command
) -> None:
    records = read_lines(MACHINE / artifact / LINES).values()
    record = min(
        (
            r
            for r in records
            if (r.run["method"], r.evaluation["evaluator"]) == (method, evaluator)
            and r.run["model"]["source"] == r.evaluation["text"]["source"] == "embedded"
            and not prune.moved(r)
        ),
        key=lambda r: (r.seconds, r.cell_id),
    )
    line = overrides_of(run_from(record.run), evaluation_from(record.evaluation), None)
    done = command(*line, "logger=none", "baseline=false")
    assert done.code == 0, done.err
    found = command.records()[record.cell_id]
    assert found["values"] == pytest.approx(record.values, rel=1e-5)
