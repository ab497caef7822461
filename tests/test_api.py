"""The Python API does what its docstrings show."""

import doctest
import subprocess
import sys
import textwrap

import pytest
import torch
from tests.base.refusals import refused
from tests.conftest import ROOT
from tests.models.architectures import make, token_ids
from tests.tiny_models import byte_tokenizer, tiny_llama, tiny_opt

import lutlab
from lutlab import api
from lutlab.base import errors
from lutlab.base.specs import ModelSpec
from lutlab.generate import own
from lutlab.models.families import weight_of
from lutlab.models.load import load_model
from lutlab.modules import QuantLinear


def weight(rows=6, columns=48):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("module", [api, errors])
def test_examples_in_docstrings(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def test_the_example_at_the_top_runs_as_it_stands(tmp_path):
    example = textwrap.dedent(api.__doc__.partition("\n\n")[2].partition("\n\n")[0])
    model, text = tiny_llama(context=2048), "to be or not to be, " * 150
    names = {"weight": weight(), "model": model, "tokenizer": byte_tokenizer(), "text": text}
    exec(example, names | {"folder": tmp_path})
    for name, home in lutlab._HOME.items():
        assert f"lutlab.{name}(" in example or home.startswith("lutlab.experiment.")
    assert isinstance(model.model.layers[0].mlp.up_proj, QuantLinear)


def test_importing_lutlab_costs_nothing():
    heavy = "{'torch', 'transformers', 'numpy', 'hydra', 'wandb', 'huggingface_hub'}"
    program = f"import sys, lutlab; assert not {heavy} & set(sys.modules), set(sys.modules)"
    path = {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", program], check=True, env=path)
    assert all(callable(getattr(lutlab, name)) for name in lutlab.__all__)
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        _ = lutlab.quantise


def test_quantize_returns_the_same_model_quantized():
    model = make("opt")
    before = model(token_ids()).logits
    assert lutlab.quantize(model, method="rtn", q=8, g=16, variant="awq") is model
    after = model(token_ids()).logits
    assert not torch.equal(before, after)
    assert torch.allclose(before, after, atol=0.05 * before.std().item())
    lutlab.quantize(same := make("opt"), "none")
    fc1, before = (m.model.decoder.layers[0].fc1.weight for m in (same, make("opt")))
    assert torch.equal(fc1, before.half().float())


def test_more_bits_are_nearer():
    def error(method, q):
        packed = lutlab.quantize_tensor(weight(), method, q=q, g=16)
        return (packed.dequantize() - weight()).norm()

    assert error("rtn", 2) > error("rtn", 4)
    assert error("bcq", 2) > error("bcq", 4)
    assert error("rtn", 2) > error("bcq", 2), "at 2 bits BCQ is nearer than RTN"


@pytest.mark.parametrize("method", ["none", "rtn", "bcq"])
def test_views_are_taken_as_they_look(method):
    view = weight(48, 6).T[:, ::2]  # [6, 24], neither axis contiguous
    assert not view.is_contiguous()
    packed = lutlab.quantize_tensor(view, method, q=4, g=8)
    again = lutlab.quantize_tensor(view.contiguous(), method, q=4, g=8)
    assert packed.shape == (6, 24)
    assert torch.equal(packed.dequantize(), again.dequantize())


@pytest.mark.parametrize(
    ("bad", "got"),
    [
        (torch.ones(8), r"torch.float32 \[8\]"),
        (torch.ones(2, 3, 8), r"torch.float32 \[2, 3, 8\]"),
        (torch.ones(2, 8, dtype=torch.int32), r"torch.int32 \[2, 8\]"),
        (torch.ones(2, 8, dtype=torch.complex64), r"torch.complex64 \[2, 8\]"),
        (torch.ones(2, 0), r"torch.float32 \[2, 0\]"),
        (torch.ones(0, 8), r"torch.float32 \[0, 8\]"),
        (torch.ones(2, 8).numpy(), "ndarray"),
        ([[1.0, 2.0]], "list"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_matrix_is_refused(bad, got):
    refused(rf"floating-point matrix \[N, K\], got {got}", lutlab.quantize_tensor, bad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "rnt"}, "'rnt'.*did you mean 'rtn'.*known: .*bcq, .*none, rtn"),
        ({"method": "rtn", "varient": "awq"}, "'rtn' has no parameter 'varient': did you mean 'variant'"),
        ({"method": "rtn", "variant": "awk"}, "did you mean 'awq'"),
        ({"method": "rtn", "bits": 4}, "no parameter 'bits': it is q here"),
        ({"method": "rtn", "groupsize": 64}, "no parameter 'groupsize': it is g here"),
        ({"method": "rtn", "metod": "bcq"}, "did you mean 'method'"),
        ({"method": "bcq", "quantizes": 1}, "has no parameter 'quantizes'"),
        ({"method": "rtn", "q": 0}, "q=0"),
        ({"method": "rtn", "q": 9}, "q=9"),
        ({"method": "bcq", "q": 2.5}, "q=2.5"),
        ({"method": "bcq", "g": 0}, "g=0"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(options, message):
    refused(message, lutlab.quantize_tensor, weight(), **options)
    refused(message, lutlab.quantize, make("opt"), **options)


def test_arguments_that_a_function_does_not_have_are_no_type_error(tmp_path):
    message = "load has no argument 'dtyp': did you mean 'dtype'"
    refused(message, lutlab.load, "x", dtyp="auto")
    refused("save has .* did you mean 'tokenizer'", lutlab.save, None, "x", tokeniser=1)
    refused("export_gptq has no argument 'floder'", lutlab.export_gptq, None, "x", floder=1)
    refused("Tuning has no argument 'step': did you mean 'steps'", lutlab.Tuning, step=3)
    refused("load: too many positional arguments; it takes folder", lutlab.load, *range(9))
    refused("folder is 3: give the path of a folder", lutlab.load, 3)
    for dtype in ("float33", torch.int8):
        refused(r"dtype is .*: give auto, or one of", lutlab.load, tmp_path, dtype=dtype)


def test_calibrated_methods_in_one_line_say_what_they_read(caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr(api, "DEFAULT_SAMPLES", 4)  # enough to see that it calibrates, in a second
    monkeypatch.setattr(own, "ROUNDS", 1)
    spec = ModelSpec("opt", "embedded", "opt-embedded-s")
    model = load_model(spec, torch.float32, "cpu", 0).model
    first, second = model.model.decoder.layers[:2]
    before = weight_of(first.fc1).float()
    lutlab.quantize(model, method="gptq_bcq", q=3, g=128, skip=["*.1.*"])
    assert "a text written by the model" in caplog.text
    assert isinstance(first.fc1, QuantLinear)
    assert not isinstance(second.fc1, QuantLinear)
    assert 0 < (first.fc1.packed.dequantize() - before).norm() < 0.3 * before.norm()


def test_a_calibrated_method_without_inputs_or_tokenizer_says_what_it_needs():
    refused(r"needs inputs=\[M, 48\]", lutlab.quantize_tensor, weight(), "gptq", q=3, g=16)
    refused("give calibration=<token ids", lutlab.quantize, make("opt"), "gptq", q=3, g=16)
    packed = lutlab.quantize_tensor(weight(), "gptq", q=8, g=16, inputs=weight(64))
    assert torch.allclose(packed.dequantize(), weight(), atol=0.05)
    message = r"weight has numbers of at most .* float32 cannot hold"
    refused(message, lutlab.quantize_tensor, weight().double() * 1e-60)
    message, inputs = "so small that their squares leave float32", torch.full((64, 48), 1e-30)
    refused(message, lutlab.quantize_tensor, weight(), "gptq", inputs=inputs)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": None}, "model is NoneType: give a transformers model"),
        ({"model": tiny_opt().to("meta")}, "parameters without values, on the meta device"),
        ({"skip": "*.fc2"}, r"skip is '\*.fc2': give patterns"),
        ({"layers": {3: (4, 16)}}, "layers, a name of it, is 3: give a mapping"),
        ({"budget": "4"}, "budget is '4': give a number"),
        ({"budget": 4, "candidates": [4]}, "candidates holds 4: give pairs of q and g"),
        ({"calibration": torch.ones(4, 16)}, r"must be token ids .* got torch.float32 \[4, 16\]"),
        ({"calibration": torch.full((4, 16), 260)}, "ids from 260 to 260, .* is 0 to 259"),
        ({"tuning": {"steps": 1}}, "tuning is dict: give lutlab.Tuning"),
        ({"offset": "yes", "method": "bcq"}, "offset='yes': give true or false"),
    ],
)
def test_arguments_of_another_kind_are_refused_before_anything_is_quantized(given, message):
    model = tiny_opt()
    refused(message, lutlab.quantize, **({"model": model, "g": 16} | given))
    assert not any(isinstance(module, QuantLinear) for module in model.modules())
