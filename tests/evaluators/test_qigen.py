"""The paper's kernels inside a model: the same tokens as with ours, and the model as it was afterwards."""

from __future__ import annotations

import pytest
import torch
from tests.tiny_models import RUN, tiny_llama, tiny_opt

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import Subject
from lutlab.evaluators import qigen
from lutlab.evaluators.qigen import QIGen
from lutlab.kernels.cpu.qigen import qigen_gemv


def subject(model):
    return Subject(model, None, (), None, 64, RUN)


def quantized(make=tiny_llama, q=4, g=16, method="rtn", **options):
    model = make()
    lutlab.quantize(model, method=method, q=q, g=g, **options)
    return model


@pytest.mark.parametrize("make", [tiny_llama, tiny_opt])  # opt's layers have a bias
@pytest.mark.parametrize(("q", "g"), [(4, 16), (3, -1), (2, 32)])
def test_logits_are_those_of_our_kernels(make, q, g):
    model = quantized(make, q, g).eval()
    ids = torch.tensor([[1, 5, 9]])
    with torch.inference_mode():
        ours = model(ids).logits
        with qigen._multiplying(qigen._packed(model)):
            theirs = model(ids).logits
        after = model(ids).logits
    assert not torch.equal(ours, theirs)  # other kernels, other rounding
    assert torch.allclose(ours, theirs, atol=1e-5 * ours.abs().max())
    assert torch.equal(ours, after)


def test_measures_with_the_kernels_it_names(monkeypatch):
    model, calls = quantized(), []
    gemv = qigen_gemv.gemv
    monkeypatch.setattr(qigen_gemv, "gemv", lambda x, w: calls.append(1) or gemv(x, w))
    found = QIGen(tokens=6, repeats=2).measure(subject(model))
    assert len(calls) == 2 * 7 * (6 + 2 * 6)  # decoded, timed twice
    assert found.values["tokens_per_s"] > 0
    assert len(found.samples) == 2
    assert found.facts["searched"] == (4 in qigen_gemv._searched())
    assert isinstance(found.facts["kernel"], list)
    assert all(name.startswith("qigen q4 g16") for name in found.facts["kernel"])
    assert not any("forward" in vars(module) for module in model.modules())


def test_kernels_that_decode_something_else_are_not_timed(monkeypatch):
    model = quantized()
    gemv = qigen_gemv.gemv
    monkeypatch.setattr(qigen_gemv, "gemv", lambda x, weight: gemv(x, weight) * -1.1)
    with pytest.raises(LutlabError, match="other tokens than lutlab's, first at"):
        QIGen(tokens=6).measure(subject(model))
    assert not any("forward" in vars(module) for module in model.modules())


def test_what_the_kernels_do_not_multiply_is_refused():
    with pytest.raises(LutlabError, match="no layer is quantized"):
        QIGen(tokens=6).measure(subject(tiny_llama()))
    with pytest.raises(LutlabError, match="are not: quantize by method=rtn"):
        QIGen(tokens=6).measure(subject(quantized(method="bcq", q=3)))
    with pytest.raises(LutlabError, match="q=5"):
        QIGen(tokens=6).measure(subject(quantized(q=5)))
    with pytest.raises(LutlabError, match="device=cpu dtype=float32"):
        QIGen(tokens=6).measure(subject(quantized().bfloat16()))
    with pytest.raises(LutlabError, match="cannot decode 128"):
        QIGen().measure(subject(quantized()))
