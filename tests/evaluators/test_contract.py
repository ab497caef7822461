"""What every registered evaluator keeps to, found by name."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from tests.tiny_models import byte_tokenizer, tiny_opt

from lutlab.base import registry
from lutlab.base.specs import ModelRun, ModelSpec, ProductRun, Subject
from lutlab.compress.driver import quantize_model
from lutlab.compress.widths import widths
from lutlab.data.protocols import protocol
from lutlab.evaluators import kernel_latency
from lutlab.evaluators.contract import Evaluator, Metric, ProductEvaluator
from lutlab.measure import products
from lutlab.models.families import kinds
from lutlab.quantizers.contract import make_method
from tools.golden import text_of

EVALUATORS = registry.classes("evaluator")
MODEL = ModelRun(ModelSpec("tiny", "folder", "tiny"), "rtn", 4, 16)
PRODUCTS = {
    method: ProductRun(((96, 80, 1),), method, q, g)
    for method, q, g in (("bcq", 3, 16), ("none", 16, -1))
}
FEW = {"tokens": 4, "context": 4, "repeats": 1, "rounds": 1}


# They hold another copy of the model, for a peer, a process or the model in full precision.
HEAVY = {"cost", "kld", "llama_cpp", "peak_memory", "qigen"}


def cheap(name):
    """Whether an evaluator measures a tiny decoder in seconds."""
    cls = EVALUATORS[name]
    return name not in HEAVY and cls.measures is ModelRun and cls.task in ("", "causal_lm")


def run_for(cls):
    return MODEL if cls.measures is ModelRun else PRODUCTS["bcq"]


@pytest.mark.parametrize("name", EVALUATORS)
def test_what_an_evaluator_declares(name):
    cls = EVALUATORS[name]
    assert issubclass(cls, Evaluator | ProductEvaluator)
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert cls.__doc__
    assert isinstance(cls.version, int)
    assert cls.version >= 1
    assert cls.measures in (ModelRun, ProductRun)
    assert isinstance(cls.of_this_machine, bool)
    assert set(cls.reads) <= {"stream", "examples", "choices", "pairs"}
    names = [metric.name for metric in cls.metrics]
    assert names
    assert len(set(names)) == len(names)
    assert all(
        isinstance(metric, Metric) and metric.unit and metric.title for metric in cls.metrics
    )
    assert not cls.metrics[0].quantized_only, "a free sweep shows it for every method"


@pytest.mark.parametrize("name", EVALUATORS)
def test_what_it_costs_and_whether_it_can_run_is_said_beforehand(name):
    cls = EVALUATORS[name]
    run = run_for(cls)
    assert isinstance(cls.obstacle(run), str)


@pytest.mark.parametrize("name", list(filter(cheap, EVALUATORS)))
def test_the_metrics_declared_are_those_measured(name):
    model, tokenizer = tiny_opt(), byte_tokenizer()
    windows = torch.arange(2 * 32).remainder(200).view(2, 32)
    width = widths(kinds(model.config), 4, 16)
    layers = quantize_model(model.eval(), make_method("rtn"), width, windows)
    text = text_of(EVALUATORS[name].golden) if EVALUATORS[name].golden else None
    kinds_read = EVALUATORS[name].reads
    assert protocol(text.protocol).kind in kinds_read if text else not kinds_read
    subject = Subject(model, tokenizer, layers, text, 32, MODEL)
    fields = {field.name for field in dataclasses.fields(EVALUATORS[name])}
    few = {option: value for option, value in FEW.items() if option in fields}
    found = EVALUATORS[name](**few).measure(subject)
    there = [one for one in EVALUATORS[name].metrics if one.format in (None, "uniform")]
    declared = {one.name for one in there if one.gpus == 1}
    assert found.values
    if EVALUATORS[name].reads_tasks:  # the task says which of them it has
        assert set(found.values) <= declared
    else:
        assert set(found.values) == declared


@pytest.mark.parametrize("method", PRODUCTS)
def test_the_metrics_declared_of_a_product_are_those_measured(method, monkeypatch):
    monkeypatch.setattr(products, "COLD_LIMIT", 20_000)
    monkeypatch.setitem(kernel_latency.ROUNDS, "cpu", 2)
    cls, run = EVALUATORS["kernel_latency"], PRODUCTS[method]
    found = cls().measure(run)
    quantized = method != "none"
    declared = {metric.name for metric in cls.metrics if quantized or not metric.quantized_only}
    assert set(found.values) == declared


def test_listing_evaluators_does_not_import_torch():
    program = (
        "import sys; from lutlab.base import registry; registry.classes('evaluator')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
