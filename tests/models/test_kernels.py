"""The embedded models through the kernels, a token at a time and all at once, beside the dequantized model."""

import pytest
import torch
from tests.models.architectures import dequantized
from tests.models.folders import loaded
from torch.nn import functional
from transformers import DynamicCache

import lutlab
from lutlab.kernels import ran
from lutlab.models.families import forward_with_cache

TEXT = "Return the number of items in a list. If the list is empty, the result is zero. " * 2


def perplexity(model, ids, step):
    """Of one text [1, T]: `step` tokens at a time, with a cache."""
    cache, parts = DynamicCache(config=model.config), ids.split(step, dim=1)
    with torch.inference_mode():
        logits = [forward_with_cache(model, cache, input_ids=part).logits for part in parts]
    loss = functional.cross_entropy(torch.cat(logits, dim=1)[0, :-1].double(), ids[0, 1:])
    return loss.exp().item()


@pytest.mark.parametrize("options", [{"method": "bcq", "q": 3}, {"method": "rtn", "q": 4}], ids=str)
@pytest.mark.parametrize("name", ["llama-embedded-s", "opt-embedded-s"])
def test_the_perplexity_is_that_of_the_dequantized_model(name, options):
    embedded = loaded(name, "embedded")
    model, ids = embedded.model, embedded.tokenizer(TEXT, return_tensors="pt").input_ids
    lutlab.quantize(model, g=32, **options)
    expected = perplexity(dequantized(model), ids, ids.shape[1])
    ran.take()
    assert perplexity(model, ids, ids.shape[1]) == pytest.approx(expected, rel=1e-6)
    assert perplexity(model, ids, 1) == pytest.approx(expected, rel=1e-5)  # the issue asks for 1e-4
    kernels = ran.take()
    assert kernels
    assert not any("once" in kernel for kernel in kernels)
