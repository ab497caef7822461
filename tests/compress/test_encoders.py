"""Encoders: GPTQ on a padded BERT is GPTQ on the inputs of its tokens, and padding changes nothing."""

import pytest
import torch
from tests.compress.passes import inputs_of, quantized, weights_of
from tests.models.architectures import ENCODERS, VOCABULARY, make

from lutlab.base.errors import LutlabError
from lutlab.compress.calibrate import stats_of
from lutlab.compress.search import search_widths
from lutlab.formats import pack
from lutlab.quantizers.contract import make_method
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.rtn import RTN

LENGTHS = (16, 3, 9, 12)  # tokens of each window
pytestmark = pytest.mark.usefixtures("two_windows_a_batch")


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


@pytest.mark.parametrize("name", ENCODERS)
def test_gptq_is_that_of_the_inputs_of_all_tokens(name):
    """A naive reading for the first block, where quantized and full-precision inputs are the same up to q, k, v."""
    model, layers = quantized(name, GPTQ(true_sequential=False), padded())
    after, layers = weights_of(model), {layer.name: layer for layer in layers}
    first = {path: w for path, w in weights_of(make(name)).items() if ".layer.0." in path}
    assert len(first) == 6
    for path, seen in inputs_of(make(name), padded(), first).items():
        x, weight = torch.cat(seen), first[path]
        stats = stats_of(x)
        assert stats.tokens == sum(LENGTHS)
        expected = pack(GPTQ().quantize(weight, 3, 16, GPTQ().prepare(stats))).dequantize()
        parted = (after[path] != expected).float().mean()
        assert parted < 0.02, "sums of another order may tip a tie"
        error = ((after[path] - weight).double() @ x.double().T).square().mean(1).sum()
        assert layers[path].output_error == pytest.approx(error.item(), rel=1e-4)


@pytest.mark.parametrize("method", ["gptq", "gptq_bcq", "awq"])
@torch.no_grad()
def test_padding_changes_nothing(method):
    """Neither its length nor what stands in it; the arguments of each batch are its own."""
    logits = []
    for windows in (padded(), padded(24, seed=2)):
        model, _ = quantized("bert", make_method(method), windows)
        logits.append(model(**padded()).logits[windows["attention_mask"][:, :16].bool()])
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-5)


def test_a_mask_of_ones_is_no_mask():
    ids = padded()["input_ids"]
    masked = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    _, layers = quantized("bert", GPTQ(), ids)
    for plain, other in zip(layers, quantized("bert", GPTQ(), masked)[1], strict=True):
        assert plain.output_norm == pytest.approx(other.output_norm, rel=1e-5)


def test_what_is_refused():
    windows = padded()
    windows["attention_mask"][1] = 0
    with pytest.raises(LutlabError, match="nothing but padding"):
        quantized("bert", GPTQ(), windows)
    with pytest.raises(LutlabError, match="this model is for masked_lm: give every layer q and g"):
        search_widths(make("bert"), RTN(), [(2, 16), (4, 16)], 5.0, windows["input_ids"])
