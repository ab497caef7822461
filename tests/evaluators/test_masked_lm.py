"""Masked-token loss is transformers' own, agreement and KL are a naive reading's, and 1 and 0 of the model itself."""

import copy
import math

import pytest
import torch
from tests.data.test_masking import WORDS, mask_tokenizer
from tests.models.architectures import make, uniform

from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelRun, ModelSpec, Subject, Text
from lutlab.compress.driver import quantize_model
from lutlab.data.masking import masked_stream
from lutlab.evaluators import masked_lm
from lutlab.evaluators.masked_lm import MaskedLM
from lutlab.evaluators.perplexity import Perplexity
from lutlab.quantizers.rtn import RTN

TEXT = Text("topics", WORDS, "rows", "here")
RUN = ModelRun(ModelSpec("tiny", "folder", "nowhere"), "rtn", 3, 16)


@pytest.fixture
def full(monkeypatch):
    """The full-precision model, which the evaluator is given in the place of the row's files."""
    model = make("bert")
    monkeypatch.setattr(masked_lm, "_full_precision", lambda run: model)
    return model


def subject(model, text=TEXT):
    return Subject(model, mask_tokenizer(), (), text, 32, RUN)


@torch.no_grad()
def test_values_are_those_of_a_naive_reading(full):
    model = copy.deepcopy(full)
    quantize_model(model, RTN(), uniform(model, 3, 16))
    found = MaskedLM(seed=3).measure(subject(model))
    assert set(found.values) == {metric.name for metric in MaskedLM.metrics}
    windows = masked_stream(TEXT, mask_tokenizer(), 32, seed=3)
    labels = windows.ids.masked_fill(~windows.chosen, -100)
    loss, kl, agreeing, size = 0.0, 0.0, 0, 0
    for read, label, word in zip(windows.read, labels, windows.ids, strict=True):
        here = label != -100
        if not here.any():  # transformers' mean of none is no number
            continue
        out = model(input_ids=read[None], labels=label[None])
        loss += out.loss.item() * int(here.sum())
        p = full(input_ids=read[None]).logits[0, here].double().softmax(-1)
        q = out.logits[0, here].double().softmax(-1)
        kl += (p * (p / q).log()).sum().item()
        agreeing += int((p.argmax(-1) == q.argmax(-1)).sum())
        names = mask_tokenizer().convert_ids_to_tokens(word[here].tolist())
        size += sum(len(name) for name in names) + len(names)  # and the blanks before them
    n = int(windows.chosen.sum())
    assert found.n == n
    assert found.values["masked_loss"] == pytest.approx(loss / n, rel=1e-5)
    assert found.values["masked_perplexity"] == pytest.approx(math.exp(loss / n), rel=1e-4)
    assert found.values["masked_kl"] == pytest.approx(kl / n, rel=1e-4)
    assert found.values["masked_agreement"] == agreeing / n
    bits = found.values["masked_bits_per_byte"]
    assert bits == pytest.approx(loss / math.log(2) / size, rel=0.02), "two blanks before a row"
    assert found.errors.keys() == found.values.keys()
    assert 0 < agreeing < n


def test_a_model_agrees_with_itself(full):
    values = MaskedLM().measure(subject(copy.deepcopy(full))).values
    assert values["masked_agreement"] == 1
    assert values["masked_kl"] == 0


def test_what_is_refused(full):
    with pytest.raises(LutlabError, match=r"masked_lm measures models for masked_lm.*causal_lm"):
        MaskedLM().measure(subject(make("opt")))
    with pytest.raises(LutlabError, match=r"ppl measures models for causal_lm.*evaluate masked_lm"):
        Perplexity().measure(subject(full))
    with torch.no_grad():
        full.cls.predictions.bias[3] = torch.nan
    with pytest.raises(LutlabError, match=r"loss of window 0 is nan"):
        MaskedLM().measure(subject(full))
