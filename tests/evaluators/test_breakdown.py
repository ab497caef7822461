"""Parts of a step: by an engine's own clock, and by the names of operations."""

import pytest
import torch
from tests.tiny_models import tiny_llama, tiny_opt

import lutlab
from lutlab import generate
from lutlab.errors import LutlabError
from lutlab.evaluators.breakdown import Breakdown, profiled
from lutlab.evaluators.generation import prompts
from lutlab.generate.eager import Eager
from lutlab.specs import Subject


class Clocked(Eager):
    """An engine that says how long its parts take."""

    def breakdown(self, context):
        """Seconds of a step."""
        assert context == 8
        return {"matmul": 0.006, "attention": 0.002, "other": 0.001}


def test_an_engine_that_times_itself_is_believed(monkeypatch):
    monkeypatch.setattr(
        generate, "engine", lambda model, length, name: Clocked(model, 1, length, "")
    )
    found = Breakdown(context=8, repeats=2).measure(Subject(tiny_llama(), None, (), None, 64))
    shares = {name: found.values[f"{name}_percent"] for name in ("matmul", "attention", "other")}
    assert shares == pytest.approx({"matmul": 600 / 9, "attention": 200 / 9, "other": 100 / 9})
    assert found.values["communication_percent"] == 0
    assert found.values["ms_per_token"] == pytest.approx(1e3 * sum(found.samples) / 2)
    assert (found.facts["context"], found.facts["parts_by"]) == (8, "the engine's own clock")


@pytest.mark.parametrize("make", [tiny_opt, tiny_llama])
def test_operations_of_a_model_are_told_apart(make, capfd):
    model = make().eval()
    lutlab.quantize(model, method="bcq", q=2, g=16)
    engine = generate.engine(model, length=9, name="transformers")
    assert not hasattr(engine, "breakdown")
    with torch.inference_mode():
        last = engine.prefill(prompts(model, 1, 8)).argmax(-1)
        parts = profiled(engine, last, 8, 3)
    assert parts["matmul"] > 0 < parts["attention"]
    assert parts["communication"] == 0
    assert capfd.readouterr() == ("", "")
    found = Breakdown(context=8, repeats=3, engine="transformers").measure(
        Subject(model, None, (), None, 64)
    )
    shares = [v for name, v in found.values.items() if name.endswith("_percent")]
    assert sum(shares) == pytest.approx(100)
    assert found.facts["parts_by"] == "torch.profiler"


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(LutlabError, match=r"evaluator\.breakdown\.context=0: give 1 or more"):
        Breakdown(context=0)
    with pytest.raises(LutlabError, match="context of 64 tokens cannot decode 65"):
        Breakdown(context=64).measure(Subject(tiny_llama(context=64), None, (), None, 64))
