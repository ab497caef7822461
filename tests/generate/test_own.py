"""A model's own text is drawn token by token from its own probabilities, and once a results folder."""

from functools import partial

import pytest
import torch
from tests.base.refusals import refused
from tests.models.architectures import make
from tests.tiny_models import byte_tokenizer
from tokenizers.decoders import DecodeStream

from lutlab.generate import own

TOKENS = 12


def naive(model, tokenizer, row):
    """The text of a row by whole forward passes."""
    ids, source = [tokenizer.bos_token_id], torch.Generator().manual_seed(row)
    decoder, letters = DecodeStream(ids, skip_special_tokens=True), []
    for _ in range(TOKENS):
        with torch.no_grad():
            shares = model(torch.tensor([ids])).logits[0, -1].float().softmax(-1)
        ids.append(torch.multinomial(shares, 1, generator=source).item())
        letters.append(decoder.step(tokenizer.backend_tokenizer, ids[-1]) or "")
    return "".join(letters)


def test_every_text_is_drawn_from_the_models_probabilities(monkeypatch):
    for name, value in {"ROWS": 2, "ROUNDS": 2, "TOKENS": TOKENS}.items():
        monkeypatch.setattr(own, name, value)
    model, tokenizer = make("llama-2"), byte_tokenizer()
    texts = own.write(model, tokenizer)
    assert texts == [naive(model, tokenizer, row) for row in range(4)]
    assert len(set(texts)) == 4


@pytest.mark.parametrize("missing", ["bos_token", "eos_token"])
def test_what_cannot_begin_a_text_is_refused(missing, monkeypatch):
    monkeypatch.setattr(own, "ROUNDS", 0)
    tokenizer = byte_tokenizer()
    setattr(tokenizer, missing, None)
    write = partial(own.write, make("llama-2"), tokenizer)
    assert write() == [], "the other token begins one"
    tokenizer.bos_token = tokenizer.eos_token = None
    refused("no token that begins or ends a text", write)


def test_what_no_engine_decodes_is_refused_with_what_to_do():
    model = make("llama-2").to("meta")
    refused(
        "writes no text to calibrate on: .*; name one, as calibration.text=",
        own.write,
        model,
        byte_tokenizer(),
    )
