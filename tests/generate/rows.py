"""Rows of tokens, and the logits that a model gives for them without a cache."""

from functools import partial

import torch
from tests.models.architectures import token_ids
from torch.testing import assert_close

near = partial(assert_close, atol=1e-4, rtol=1e-5)


def prompts(*lengths):
    return [token_ids(len(lengths), length)[row] for row, length in enumerate(lengths)]


@torch.inference_mode()
def alone(model, texts):
    """Logits after the last token of each text."""
    rows = [model(input_ids=ids[None], use_cache=False).logits[0, -1] for ids in texts]
    return torch.stack(rows).float()


def longer(texts, chosen):
    return [torch.cat([ids, token[None]]) for ids, token in zip(texts, chosen, strict=True)]


def check(own, model, texts, steps, within=near):
    """An engine's greedy steps have the logits of a model without a cache."""
    logits = own.prefill(texts).cpu()
    for step in range(steps + 1):
        within(logits, alone(model, texts))
        if step < steps:
            chosen = logits.argmax(-1)
            texts = longer(texts, chosen)
            logits = own.step(chosen).cpu()
    assert own.positions == [len(ids) for ids in texts]
