"""What every registered evaluator keeps to, found by name."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from tests.evaluators.items import subject
from tests.tiny_models import byte_tokenizer, tiny_opt

from lutlab.base import registry
from lutlab.base.specs import ModelRun, ModelSpec, ProductRun
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
PRODUCTS = {"bcq": (3, 16), "none": (16, -1)}
FEW = {"tokens": 4, "context": 4, "repeats": 1, "rounds": 1}
# They hold another copy of the model, for a peer, a process or the model in full precision.
HEAVY = {"cost", "kld", "llama_cpp", "peak_memory", "qigen"}
CHEAP = [  # measured in seconds on a tiny decoder
    name
    for name, cls in EVALUATORS.items()
    if name not in HEAVY and cls.measures is ModelRun and cls.task in ("", "causal_lm")
]


def product(method):
    return ProductRun(((96, 80, 1),), method, *PRODUCTS[method])


@pytest.mark.parametrize("cls", EVALUATORS.values(), ids=EVALUATORS)
def test_what_an_evaluator_declares(cls):
    assert issubclass(cls, Evaluator | ProductEvaluator)
    assert cls.__dataclass_params__.frozen
    assert cls.__doc__
    assert isinstance(cls.version, int)
    assert cls.version >= 1
    assert cls.measures in (ModelRun, ProductRun)
    assert isinstance(cls.of_this_machine, bool)
    assert set(cls.reads) <= {"stream", "examples", "choices", "pairs"}
    names = [metric.name for metric in cls.metrics]
    assert len(set(names)) == len(names) > 0
    assert all(isinstance(m, Metric) and m.unit and m.title for m in cls.metrics)
    assert not cls.metrics[0].quantized_only, "a free sweep shows it for every method"
    assert isinstance(cls.obstacle(MODEL if cls.measures is ModelRun else product("bcq")), str)


@pytest.mark.parametrize("name", CHEAP)
def test_the_metrics_declared_are_those_measured(name):
    cls, model = EVALUATORS[name], tiny_opt().eval()
    windows = torch.arange(2 * 32).remainder(200).view(2, 32)
    layers = quantize_model(model, make_method("rtn"), widths(kinds(model.config), 4, 16), windows)
    text = text_of(cls.golden) if cls.golden else None
    assert protocol(text.protocol).kind in cls.reads if text else not cls.reads
    few = {field.name: FEW[field.name] for field in dataclasses.fields(cls) if field.name in FEW}
    measured = cls(**few).measure(subject(model, byte_tokenizer(), text, 32, layers, MODEL)).values
    declared = {m.name for m in cls.metrics if m.format in (None, "uniform") and m.gpus == 1}
    assert set() < set(measured) <= declared
    assert set(measured) == declared or cls.reads_tasks  # the task says which of them it has


@pytest.mark.parametrize("method", PRODUCTS)
def test_the_metrics_declared_of_a_product_are_those_measured(method, monkeypatch):
    monkeypatch.setattr(products, "COLD_LIMIT", 20_000)
    monkeypatch.setitem(kernel_latency.ROUNDS, "cpu", 2)
    cls = EVALUATORS["kernel_latency"]
    declared = {m.name for m in cls.metrics if method != "none" or not m.quantized_only}
    measured = cls().measure(product(method))
    assert measured.values.keys() == declared
    assert min(measured.values.values()) >= 0
    assert measured.values["relative_error"] < 1e-5
    assert len(measured.samples) == measured.n == 2
    assert "torch float32" in measured.facts["baseline"]
    assert cls.of_this_machine


def test_listing_evaluators_does_not_import_torch():
    program = "import sys; from lutlab.base import registry; registry.classes('evaluator')"
    program += "; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
