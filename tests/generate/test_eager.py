"""The engine by transformers' own modules chooses the tokens that the model chooses without a cache, row by row."""

import pytest
import torch
from tests.models.architectures import CAUSAL, make, token_ids

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.generate import engine
from lutlab.models import fits


def alone(model, ids):
    """Logits after the last of ids, without a cache."""
    with torch.inference_mode():
        return model(input_ids=ids[None], use_cache=False).logits[0, -1].float()


@pytest.mark.parametrize("family", CAUSAL)
def test_logits_are_those_without_a_cache(family):
    model = make(family)
    lutlab.quantize(model, "rtn", q=4, g=8)
    rows = [token_ids(length=7)[0], token_ids(length=4)[1]]
    own = engine(model, batch=2, length=16, name="transformers")
    logits = own.prefill(rows)
    for _ in range(3):
        for row, ids in enumerate(rows):
            assert torch.allclose(logits[row], alone(model, ids), atol=1e-4)
        chosen = logits.argmax(-1)
        rows = [torch.cat([ids, one[None]]) for ids, one in zip(rows, chosen, strict=True)]
        logits = own.step(chosen)
    assert own.positions == [10, 7]
    own.rewind(4)
    again = own.step(torch.stack([ids[4] for ids in rows]))
    assert torch.allclose(again[0], alone(model, rows[0][:5]), atol=1e-4)


def test_what_an_engine_refuses():
    model = make("opt")
    own = engine(model, batch=2, length=4, name="transformers")
    one = torch.ones(1, dtype=torch.int64)
    for call, message in (
        (lambda: own.prefill([one]), "1 prompts for an engine of 2 rows"),
        (lambda: own.prefill([one, one[:0]]), "prompt 1 has 0 tokens"),
        (
            lambda: own.prefill([one, one.repeat(5)]),
            r"prompt 1 has 5 tokens, .* holds 1 to 4: shorten it",
        ),
        (lambda: own.prefill([one, one * 10**6]), "token ids from 1000000"),
        (lambda: own.step(one), r"ids have shape \[1\]"),
        (lambda: own.rewind(1), "rewind to 1 tokens"),
        (lambda: engine(model, batch=0), "batch is 0"),
        (lambda: engine(model, length=10**6), "the model's context is"),
        (lambda: engine(model, cache="int3"), "cache=int3"),
        (
            lambda: engine(model, cache="float16", name="transformers"),
            "its cache is of the model's dtype",
        ),
        (lambda: engine(model, name="cuda"), "unknown engine 'cuda'"),
    ):
        with pytest.raises(LutlabError, match=message):
            call()
    own.prefill([one, one])
    for _ in range(3):
        own.step(torch.ones(2, dtype=torch.int64))
    with pytest.raises(LutlabError, match="the cache is full"):
        own.step(torch.ones(2, dtype=torch.int64))
    with pytest.raises(LutlabError, match="only a causal language model"):
        engine(make("bert"))


def test_a_cache_that_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(fits, "available", lambda device: 10_000)
    with pytest.raises(
        fits.TooLargeError, match=r"a cache of 4 x 64 tokens needs .*cpu has 0\.0 GB"
    ):
        engine(make("opt"), batch=4)


def test_bytes_of_a_step():
    model = make("llama-2")
    own = engine(model, batch=1, length=16)
    dense = sum(p.nbytes for n, p in model.named_parameters() if "proj" in n and "weight" in n)
    found = own.bytes_read(10)
    assert found["weights"] == dense
    assert found["cache"] == 10 * own.facts()["cache_bytes"] // 16
