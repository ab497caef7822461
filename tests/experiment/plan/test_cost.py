"""Predictions of cells that decode: what must grow with what, and the order of magnitude on a machine we make up."""

from __future__ import annotations

import dataclasses

import pytest

from lutlab.base.specs import CalibrationSpec, EvalSpec, ModelRun, ModelSpec, TextSpec
from lutlab.experiment.plan import cost
from lutlab.experiment.plan.cost import predict
from lutlab.experiment.plan.resolve import Files
from lutlab.models.shape import ModelShape

GB = 1e9
# LLaMA-7B's, from its config
SEVEN = ModelShape(
    parameters=6_738_415_616, linear_parameters=6_476_005_376, hidden=4096, layers=32, vocabulary=32000, seqlen=2048,
    inputs=((4096, 3 * 4096), (4096, 4096), (4096, 2 * 11008), (11008, 4096)),
)  # fmt: skip
TINY = ModelShape(
    parameters=10**6, linear_parameters=8 * 10**5, hidden=128, layers=4, vocabulary=2048, seqlen=512,
    inputs=((128, 384),),
)  # fmt: skip
DECODERS = ("generation", "qigen", "llama_cpp", "peak_memory")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 GB/s from memory, 100 GFlop/s."""
    monkeypatch.setattr(cost, "read_rate", lambda device: 10 * GB)
    monkeypatch.setattr(cost, "matmul_rate", lambda device, dtype: 100 * GB)
    monkeypatch.setattr(cost, "shape_of", lambda spec: {"7b": SEVEN, "tiny": TINY}[spec.id])


def predicted(evaluator: str, model: str = "7b", **options) -> cost.Cost:
    spec = ModelRun(ModelSpec(model, "folder", model), "rtn", **{"q": 4, "g": 128} | options)
    return predict(spec, EvalSpec(evaluator), Files())


def test_a_large_model_is_bound_by_what_it_reads() -> None:
    """6 decodings of 128 tokens, 3.4 GB of codes and half a GB of head each, at half of 10 GB/s."""
    seconds = predicted("generation").seconds
    assert 6 * 128 * (3.4 + 0.5) / 5 < seconds < 2 * 6 * 128 * (3.4 + 0.5) / 5
    full = predicted("generation", q=16, g=-1).seconds
    assert 5 < full / seconds < 7.5
    assert predicted("generation", q=3).seconds < seconds < predicted("generation", g=16).seconds


def test_a_small_model_is_bound_by_what_a_token_costs_beside() -> None:
    seconds = predicted("generation", "tiny").seconds
    assert 6 * 128 * 4 * 1e-4 < seconds < 6 * 128 * 4 * 1e-2
    assert predicted("generation", "tiny", q=16, g=-1).seconds < 1.5 * seconds


@pytest.mark.parametrize("evaluator", DECODERS)
@pytest.mark.parametrize("model", ["7b", "tiny"])
def test_no_decoding_is_free(evaluator: str, model: str) -> None:
    assert predicted(evaluator, model).seconds > 1


def test_evaluators_cost_what_they_do() -> None:
    assert predicted("qigen").seconds > 1.5 * predicted("generation").seconds
    assert predicted("llama_cpp").seconds < 3 * predicted("generation").seconds
    assert predicted("peak_memory").seconds < predicted("generation").seconds  # decodes once
    # A tiny model decodes faster than a process starts.
    assert predicted("peak_memory", "tiny").seconds > predicted("generation", "tiny").seconds


@pytest.mark.parametrize("evaluator", DECODERS)
def test_the_model_fits_into_the_memory_that_is_predicted(evaluator: str) -> None:
    assert predicted(evaluator).peak_bytes >= 4 * SEVEN.parameters
    own = predicted(evaluator).peak_bytes - predicted("generation").peak_bytes
    assert (own > SEVEN.linear_parameters / 2) == (evaluator != "generation")


def test_cells_that_only_look_at_statistics_stay_cheap() -> None:
    assert predicted("weight_error").seconds < 1


def test_a_drawn_model_takes_what_it_stores_and_no_more() -> None:
    """3.375 bits a linear weight: a sign in each of 3 planes, 3 float16 for 128; the rest in float32."""
    drawn = ModelRun(ModelSpec("s", "synthetic", "llama-7b", packed=True), "bcq", 3, 128)
    stored = SEVEN.linear_parameters * (3 + 3 * 16 / 128) / 8
    others = 4 * (SEVEN.parameters - SEVEN.linear_parameters)
    assert cost._model_bytes(drawn, SEVEN) == stored + others


def test_a_target_takes_the_full_precision_model_along() -> None:
    """Its block, its hidden states, and cross moments as large as the widest Hessian."""
    text = TextSpec("pydocs-train", "embedded")
    calibration = CalibrationSpec(text, samples=128, seqlen=2048, seed=0)
    asked = {"q": 2, "g": 128, "calibration": calibration}
    plain, beside = (
        ModelRun(ModelSpec("7b", "folder", "7b"), "gptq", options=options, **asked)
        for options in ((), (("target", "stream"), ("true_sequential", True)))
    )
    states, block = 128 * 2048 * 4096 * 4, SEVEN.linear_parameters // 32 * 4
    more = cost._model_bytes(beside, SEVEN) - cost._model_bytes(plain, SEVEN)
    assert more == states + block + 4 * 4 * 11008**2
    assert cost.quantize_seconds(beside) > 1.5 * cost.quantize_seconds(plain)
    guided = dataclasses.replace(plain, options=(("hessian", "gradients"), ("output_groups", 2)))
    squares = sum(columns**2 for columns, _ in SEVEN.inputs)
    assert cost._model_bytes(guided, SEVEN) == cost._model_bytes(plain, SEVEN) + 2 * 4 * squares
    assert cost.quantize_seconds(guided) > 1.5 * cost.quantize_seconds(plain)


def test_rows_of_one_model_and_text_share_what_kld_keeps_on_disk(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cost, "_tokens", lambda text, seqlen, files: 4 * seqlen)
    tiny = ModelSpec("tiny", "folder", "tiny")
    rows = [ModelRun(tiny, "rtn", q, 64) for q in (3, 4)]
    rows.append(dataclasses.replace(rows[0], dtype="float16"))
    text = EvalSpec("kld", TextSpec("topics", "embedded"))
    planned = {(row, text): predict(row, text, Files()) for row in rows}
    states = 4 * 512 * 128
    assert [one.state_bytes for one in planned.values()] == [4 * states, 4 * states, 2 * states]
    ppl = predict(rows[0], dataclasses.replace(text, evaluator="ppl"), Files())
    kld = planned[rows[0], text]
    assert (kld.seconds, kld.peak_bytes) > (
        1.9 * ppl.seconds,
        ppl.peak_bytes + 4 * TINY.parameters - 1,
    )
    said = cost._summary(planned, tmp_path)
    assert f"disk {(6 * states + 3 * cost.RECORD_BYTES) / 1e6:.1f} MB" in said
