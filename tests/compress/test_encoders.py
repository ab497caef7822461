"""Encoders: GPTQ on a padded BERT is GPTQ on the inputs of its tokens, and padding changes nothing."""

import copy

import pytest
import torch
from tests.models.architectures import ENCODERS, VOCABULARY, make, uniform

from lutlab.base.errors import LutlabError
from lutlab.compress import calibrate
from lutlab.compress.calibrate import stats_of
from lutlab.compress.driver import quantize_model
from lutlab.compress.search import search_widths
from lutlab.formats import pack
from lutlab.models.families import linear_layers, weight_of
from lutlab.quantizers.contract import make_method
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.rtn import RTN

LENGTHS = (16, 3, 9, 12)  # tokens of each window
Q, G = 3, 16
METHODS = ["gptq", "gptq_bcq", "awq"]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Two windows a batch."""
    monkeypatch.setattr(calibrate, "BATCH_TOKENS", 2 * max(LENGTHS) + 1)


def padded(length=16, seed=1):
    """Windows as a tokenizer pads them to `length`; what the padding says depends on the seed."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY, (len(LENGTHS), length), generator=draw)
    mask = torch.arange(length) < torch.tensor(LENGTHS)[:, None]
    text = torch.randint(VOCABULARY, (len(LENGTHS), 16), generator=torch.Generator().manual_seed(0))
    text = torch.nn.functional.pad(text, (0, length - 16))
    return {
        "input_ids": torch.where(mask, text, ids),
        "attention_mask": mask.long(),
        "token_type_ids": mask.long() * (torch.arange(length) > 2).long(),
    }


@torch.no_grad()
def inputs_of_tokens(model, windows, layer):
    """X [M, K] of a layer by a hook on the whole model, one window at a time, which needs no padding."""
    seen = []
    hook = model.get_submodule(layer).register_forward_pre_hook(lambda _, x: seen.append(x[0][0]))
    for row, length in enumerate(LENGTHS):
        model(**{name: value[row : row + 1, :length] for name, value in windows.items()})
    hook.remove()
    return torch.cat(seen)


@pytest.mark.parametrize("name", ENCODERS)
def test_gptq_is_that_of_the_inputs_of_all_tokens(name):
    """A naive reading for the first block, where quantized and full-precision inputs are the same up to q, k, v."""
    model, windows = make(name), padded()
    quantized = copy.deepcopy(model)
    layers = quantize_model(quantized, GPTQ(true_sequential=False), uniform(model, Q, G), windows)
    first = [(path, m) for path, m in linear_layers(model) if ".layer.0." in path]
    assert len(first) == 6
    for path, module in first:
        x = inputs_of_tokens(model, windows, path)
        stats = stats_of(x)
        assert stats.tokens == sum(LENGTHS)
        weight = weight_of(module)
        expected = pack(GPTQ().quantize(weight, Q, G, GPTQ().prepare(stats))).dequantize()
        found = quantized.get_submodule(path).packed.dequantize()
        assert (found != expected).float().mean() < 0.02, "sums of another order may tip a tie"
        error = ((found - weight).double() @ x.double().T).square().mean(1).sum()
        stated = next(layer for layer in layers if layer.name == path).output_error
        assert stated == pytest.approx(error.item(), rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_padding_changes_nothing(method):
    """Neither its length nor what stands in it; the arguments of each batch are its own."""
    found = []
    for windows in (padded(), padded(24, seed=2)):
        model = make("bert")
        quantize_model(model, make_method(method), uniform(model, Q, G), windows)
        with torch.no_grad():
            found.append(model(**padded()).logits[windows["attention_mask"][:, :16].bool()])
    assert torch.allclose(*found, atol=1e-4)


def test_a_mask_of_ones_is_no_mask():
    windows = {"input_ids": padded()["input_ids"]}
    masked = windows | {"attention_mask": torch.ones_like(windows["input_ids"])}
    found = []
    for calibration in (windows["input_ids"], masked):
        model = make("bert")
        found.append(quantize_model(model, GPTQ(), uniform(model, Q, G), calibration))
    for plain, other in zip(*found, strict=True):
        assert plain.output_norm == pytest.approx(other.output_norm, rel=1e-5)


def test_what_is_refused():
    model, windows = make("bert"), padded()
    windows["attention_mask"][1] = 0
    with pytest.raises(LutlabError, match="nothing but padding"):
        quantize_model(model, GPTQ(), uniform(model, Q, G), windows)
    with pytest.raises(LutlabError, match="this model is for masked_lm: give every layer q and g"):
        search_widths(model, RTN(), [(2, 16), (4, 16)], 5.0, padded()["input_ids"])
