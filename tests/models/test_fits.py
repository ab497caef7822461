"""What a model takes, by its parts, against what transformers itself allocates; and who is refused."""

import re

import pytest
import torch
from tests.models.architectures import CAUSAL, make
from transformers import DynamicCache

from lutlab.base.errors import LutlabError
from lutlab.models import fits
from lutlab.models.families import forward_with_cache


# mistral's window slides.
@pytest.mark.parametrize("name", [name for name in CAUSAL if name != "mistral"])
def test_a_cache_has_the_bytes_of_transformers_own(name):
    model, cache = make(name), DynamicCache()
    with torch.no_grad():
        forward_with_cache(model, cache, input_ids=torch.zeros(3, 10, dtype=torch.int64))
    size = sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))
    assert fits.cache_bytes(model.config, 3, 10, 4) == size


@pytest.mark.parametrize("name", ["opt-350m", "llama-2", "gpt2"])
def test_embeddings_and_head_are_what_is_outside_of_blocks(name):
    model = make(name)
    parameters = dict(model.named_parameters()).items()  # a tied head is the embedding
    outside = [p.nbytes for path, p in parameters if not re.search(r"\.(layers|h)\.", path)]
    parts = fits.outside_parts(model)
    assert sum(parts.values()) == sum(outside)
    assert parts["head"] == (0 if name != "llama-2" else model.lm_head.weight.nbytes)


def test_what_does_not_fit_is_refused_with_the_numbers(monkeypatch):
    parts = {"weights": 3 * 10**9, "head": 0, "cache": 10**9}
    monkeypatch.setattr(fits, "available", lambda device: 4 * 10**9)
    fits.check("a model", parts, "cpu")
    monkeypatch.setattr(fits, "available", lambda device: 39 * 10**8)
    message = r"a model needs 4.0 GB \(weights 3.0, cache 1.0\), and cpu has 3.9 GB free"
    with pytest.raises(fits.TooLargeError, match=message) as caught:
        fits.check("a model", parts, "cpu")
    assert isinstance(caught.value, LutlabError)
    assert isinstance(caught.value, MemoryError)  # a table says OOM


def test_free_memory_is_some_and_not_all_the_world():
    assert 2**26 < fits.available("cpu") < 2**50
