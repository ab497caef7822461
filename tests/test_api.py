"""The Python API does what its docstrings show."""

import doctest
import subprocess
import sys
import textwrap

import pytest
import torch
from tests.conftest import ROOT
from tests.models.architectures import make, token_ids
from tests.tiny_models import byte_tokenizer, tiny_llama, tiny_opt

import lutlab
from lutlab import api
from lutlab.base import errors
from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelSpec
from lutlab.evaluators.lambada import LambadaResult
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
    names = {
        "weight": weight(),
        "model": tiny_llama(context=2048),
        "tokenizer": byte_tokenizer(),
        "text": "to be or not to be, " * 150,
        "folder": tmp_path,
    }
    exec(example, names)
    for name, home in lutlab._HOME.items():
        assert f"lutlab.{name}(" in example or home.startswith("lutlab.experiment.")
    assert isinstance(names["model"].model.layers[0].mlp.up_proj, QuantLinear)


def test_importing_lutlab_costs_nothing():
    heavy = "{'torch', 'transformers', 'numpy', 'hydra', 'wandb', 'huggingface_hub'}"
    program = f"import sys, lutlab; assert not {heavy} & set(sys.modules), set(sys.modules)"
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(ROOT / "src")}
    )


def test_public_names():
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


def test_more_bits_are_nearer():
    errors = [
        (lutlab.quantize_tensor(weight(), method, q=q, g=16).dequantize() - weight()).square().sum()
        for method in ("rtn", "bcq")
        for q in (2, 4)
    ]
    assert errors[0] > errors[1]
    assert errors[2] > errors[3]
    assert errors[0] > errors[2], "at 2 bits BCQ is nearer than RTN"


def test_perplexity_and_lambada_of_a_quantized_model():
    model = lutlab.quantize(tiny_opt(), method="bcq", q=3, g=16)
    text = "the cat sat on the mat " * 8
    assert 1 < lutlab.perplexity(model, byte_tokenizer(), text, seqlen=32) < float("inf")
    result = lutlab.lambada(model, byte_tokenizer(), ["the cat sat", "on the mat"])
    assert isinstance(result, LambadaResult)
    assert result.n == 2


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
    with pytest.raises(LutlabError, match=rf"floating-point matrix \[N, K\], got {got}"):
        lutlab.quantize_tensor(bad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "rnt"}, "'rnt'.*did you mean 'rtn'.*known: .*bcq, .*none, rtn"),
        (
            {"method": "rtn", "varient": "awq"},
            "'rtn' has no parameter 'varient': did you mean 'variant'",
        ),
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
)
def test_mistakes_are_explained(options, message):
    with pytest.raises(LutlabError, match=message):
        lutlab.quantize_tensor(weight(), **options)
    with pytest.raises(LutlabError, match=message):
        lutlab.quantize(make("opt"), **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: lutlab.load("x", dtyp="auto"),
            "load has no argument 'dtyp': did you mean 'dtype'",
        ),
        (lambda: lutlab.save(None, "x", tokeniser=1), "save has .* did you mean 'tokenizer'"),
        (lambda: lutlab.export_gptq(None, "x", floder=1), "export_gptq has no argument 'floder'"),
        (lambda: lutlab.Tuning(step=3), "Tuning has no argument 'step': did you mean 'steps'"),
    ],
)
def test_a_misspelled_argument_is_no_type_error(call, message):
    with pytest.raises(LutlabError, match=message):
        call()


def test_calibrated_methods_in_one_line_say_what_they_read(caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr(api, "DEFAULT_SAMPLES", 4)  # enough to see that it calibrates, in a second
    model = load_model(
        ModelSpec("opt", "embedded", "opt-embedded-s"), torch.float32, "cpu", 0
    ).model
    before = weight_of(model.model.decoder.layers[0].fc1).float()
    lutlab.quantize(model, method="gptq_bcq", q=3, g=128, skip=["*.1.*"])
    assert "Python's documentation" in caplog.text
    first, second = model.model.decoder.layers[:2]
    assert isinstance(first.fc1, QuantLinear)
    assert not isinstance(second.fc1, QuantLinear)
    assert 0 < (first.fc1.packed.dequantize() - before).norm() < 0.3 * before.norm()


def test_a_calibrated_method_without_inputs_or_tokenizer_says_what_it_needs():
    with pytest.raises(LutlabError, match=r"needs inputs=\[M, 48\]"):
        lutlab.quantize_tensor(weight(), "gptq", q=3, g=16)
    with pytest.raises(LutlabError, match="give calibration=<token ids"):
        lutlab.quantize(make("opt"), method="gptq", q=3, g=16)
    inputs = torch.randn(64, 48, generator=torch.Generator().manual_seed(1))
    packed = lutlab.quantize_tensor(weight(), "gptq", q=8, g=16, inputs=inputs)
    assert torch.allclose(packed.dequantize(), weight(), atol=0.05)


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
        (
            {"calibration": torch.full((4, 16), 260)},
            "ids from 260 to 260, .* vocabulary is 0 to 259",
        ),
        ({"tuning": {"steps": 1}}, "tuning is dict: give lutlab.Tuning"),
        ({"offset": "yes", "method": "bcq"}, "offset='yes': give true or false"),
    ],
)
def test_arguments_of_another_kind_are_refused_before_anything_is_quantized(given, message):
    model = tiny_opt()
    with pytest.raises(LutlabError, match=message):
        lutlab.quantize(**({"model": model, "g": 16} | given))
    assert not any(isinstance(module, QuantLinear) for module in model.modules())


def test_full_precision_is_a_method_of_whole_models_too():
    model = lutlab.quantize(tiny_opt(), "none")
    fc1 = model.model.decoder.layers[0].fc1
    assert torch.equal(fc1.weight, tiny_opt().model.decoder.layers[0].fc1.weight.half().float())


def test_what_vanishes_in_float32_is_refused():
    with pytest.raises(LutlabError, match=r"weight has numbers of at most .* float32 cannot hold"):
        lutlab.quantize_tensor(weight().double() * 1e-60)
    with pytest.raises(LutlabError, match="so small that their squares leave float32"):
        lutlab.quantize_tensor(weight(), "gptq", inputs=torch.full((64, 48), 1e-30))


def test_too_many_arguments_are_no_type_error(tmp_path):
    with pytest.raises(LutlabError, match="load: too many positional arguments; it takes folder"):
        lutlab.load(*range(9))
    with pytest.raises(LutlabError, match="folder is 3: give the path of a folder"):
        lutlab.load(3)
    for dtype in ("float33", torch.int8):
        with pytest.raises(LutlabError, match=r"dtype is .*: give auto, or one of"):
            lutlab.load(tmp_path, dtype=dtype)
