"""The predictor's constants are what the papers' printed latencies give today, and as good as they are said to be."""

import contextlib
import dataclasses
import json
from pathlib import Path

import pytest
from tests.base.refusals import refused
from tests.conftest import ROOT

from lutlab import predict
from lutlab.predict import per_token
from tools import fit_latency
from tools.fit import Observed, errors, fit, predicted

KEPT = json.loads(Path(per_token.__file__).with_name(per_token.CONSTANTS).read_text("utf-8"))
A100 = predict.device("A100-80GB")


@pytest.fixture(scope="module")
def observed() -> list[Observed]:
    with contextlib.chdir(ROOT):
        return fit_latency.observed()


def test_constants_are_those_of_the_published_latencies(observed, monkeypatch) -> None:
    """After new `predict:` keys or numbers: python -m tools.fit_latency."""
    monkeypatch.chdir(ROOT)
    constants = fit_latency.constants()
    assert constants.keys() == KEPT.keys()
    for name, own in KEPT.items():
        assert constants[name]["rates"] == pytest.approx(own["rates"], rel=1e-4)
        assert constants[name]["errors"] == pytest.approx(own["errors"], rel=1e-3)
    page = fit_latency.PAGE.read_text(encoding="utf-8")
    assert fit_latency.page(page, KEPT, observed) == page
    refused("<!-- fitted -->", fit_latency.page, "# Predict\n", KEPT, observed)


def test_errors_are_within_the_goals() -> None:
    own = KEPT["lut-gemm"]
    assert own["errors"]["median"] <= 0.05
    assert own["errors"]["worst"] <= 0.25
    assert all(table["median"] <= 0.08 for table in own["table_left_out"].values())
    tokens = KEPT["lutlab-cpu"]["tokens"]  # ours, as they were measured
    assert tokens["median"] <= 0.05
    assert tokens["worst"] <= 0.15
    assert own["held_out"]["worst"] <= 0.15  # FasterTransformer's own table, in no fit


def test_the_stated_error_is_that_of_the_cells(observed) -> None:
    """Those of table 4, of which the fit saw the most."""
    rows = [row for row in observed if "lut-gemm-v3/table4" in row.where]
    assert len(rows) == 29
    here = errors(rows, predict.ENGINES["lut-gemm"].rates, A100)
    assert here.worst <= KEPT["lut-gemm"]["errors"]["worst"] + 1e-6
    assert here.median <= 0.05


def test_a_fit_finds_the_constants_that_made_the_numbers() -> None:
    made = predict.Rates(0.8, 0.7, 0.8, 70.0, 50.0, link_us=20.0)
    decoders = [predict.decoder(shape) for shape in ("opt-30b", "llama-7b")]
    blank = [Observed(d, q, -1, gpus, 1.0) for d in decoders for q in (16, 3, 4) for gpus in (1, 4)]
    rows = [dataclasses.replace(row, ms=predicted(row, made, A100)) for row in blank]
    fitted = fit(rows, A100)
    for name in ("dense", "packed", "layer_us", "packed_layer_us", "link_us"):
        assert getattr(fitted, name) == pytest.approx(getattr(made, name), rel=1e-6)
    refused("do not decide 5 constants", fit, [row for row in rows if row.gpus == 1], A100)
