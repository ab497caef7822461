"""The engine by transformers' modules gives the model's logits without a cache; and two ways to read a prompt."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tests.base.refusals import refused
from tests.generate.rows import alone, check, near, prompts
from tests.kernels.checks import inputs
from tests.models.architectures import CAUSAL, make, token_ids
from tests.tiny_models import tiny_llama, tiny_opt

import lutlab
from lutlab.formats.uniform import PackedUniform
from lutlab.generate import engine
from lutlab.generate import prefill as ways
from lutlab.generate.cpu import CpuStep
from lutlab.generate.eager import Eager
from lutlab.generate.graph import GraphStep
from lutlab.generate.panels import by_panels
from lutlab.kernels.dispatch import prepare
from lutlab.models import fits
from lutlab.quantizers.rtn import RTN

PROMPTS = [torch.arange(1, 12), torch.tensor([7])]
MIXED = {"q": 2, "calibration": torch.ones(1, 8, dtype=torch.int64)}


@pytest.mark.parametrize("family", CAUSAL)
def test_logits_are_those_without_a_cache(family):
    model = lutlab.quantize(make(family), "rtn", q=4, g=8)
    own = engine(model, batch=2, length=16, name="transformers")
    check(own, model, prompts(7, 4), 3)


@pytest.mark.parametrize("made", [CpuStep, Eager, GraphStep])
def test_rewound_rows_go_on_after_their_own_first_tokens_until_the_cache_is_full(made):
    model, ids = make("gpt-neo" if made is not GraphStep else "opt"), token_ids(2, 16)
    with torch.inference_mode():  # and is used outside of it
        own = made(model, 2, 16, "")
    own.prefill([ids[0, :8], ids[1, :6]])
    own.rewind(5)
    steps = []
    for at in range(5, 16):
        steps.append(own.step(ids[:, at]))
        near(steps[-1], alone(model, ids[:, : at + 1]))
    refused("the cache is full", own.step, ids[:, 0])
    own.rewind(12)
    assert all(torch.equal(own.step(ids[:, at]), steps[at - 5]) for at in range(12, 16))
    own.rewind()
    assert own.positions == [0, 0]


def test_what_an_engine_refuses():
    model = make("opt")
    own = engine(model, batch=2, length=4, name="transformers")
    token = torch.ones(1, dtype=torch.int64)
    refused("1 prompts for an engine of 2 rows", own.prefill, [token])
    refused("prompt 1 has 0 tokens", own.prefill, [token, token[:0]])
    message = r"prompt 1 has 5 tokens, .* holds 1 to 4: shorten it"
    refused(message, own.prefill, [token, token.repeat(5)])
    refused("token ids from 1000000", own.prefill, [token, token * 10**6])
    refused(r"ids have shape \[1\]", own.step, token)
    refused("rewind to 1 tokens", own.rewind, 1)
    refused("batch is 0", engine, model, batch=0)
    refused("the model's context is", engine, model, length=10**6)
    refused("cache=int3", engine, model, cache="int3")
    message = "its cache is of the model's dtype"
    refused(message, engine, model, cache="float16", name="transformers")
    refused("unknown engine 'cuda'", engine, model, name="cuda")
    refused("only a causal language model", engine, make("bert"))
    own = lutlab.engine(tiny_llama(), length=8, cache="float16")
    message = "way=dequant of reading a prompt: did you mean"
    refused(message, ways.prefill, own, own.model, [torch.tensor([1])], "dequant")
    too_long = [torch.arange(1, 10)]
    refused("prompt 0 has 9 tokens", ways.prefill, own, own.model, too_long, "dequantize")
    huge = torch.full((1, 1, 16), 1e6)
    refused("larger than cache=float16 can hold", own.write, 0, 0, 0, huge, huge)


@pytest.mark.parametrize("made", [partial(engine, name="transformers"), GraphStep])
def test_a_cache_that_does_not_fit_is_refused_before_it_is_made(made, monkeypatch):
    monkeypatch.setattr(fits, "available", lambda device: 4_000)
    model = make("llama-2")  # 256 bytes a token: 2 layers, keys and values, 2 heads of 8, float32
    message = r"a cache of 2 x 8 tokens needs .*cpu has 0\.0 GB"
    with pytest.raises(fits.TooLargeError, match=message):
        made(model, 2, 8)
    made(model, 1, 15)


def test_bytes_of_a_step():
    model = make("llama-2")
    own = engine(model, batch=1, length=16)
    dense = sum(p.nbytes for n, p in model.named_parameters() if "proj" in n and "weight" in n)
    cache = 10 * own.facts()["cache_bytes"] // 16
    assert own.bytes_read(10).items() >= {"weights": dense, "cache": cache}.items()


@pytest.mark.parametrize("q", [3, 4])
def test_panels_are_the_whole_weight(q):
    """Several panels of columns, a last block and a last panel that are not full."""
    weight, x = inputs(72, 2080, seed=q), inputs(5, 2080, seed=9)
    linear = prepare(PackedUniform.pack(RTN().quantize(weight, q, 32)), "cpu")
    y = by_panels(x, linear, torch.full((32, 2080), torch.nan))
    assert torch.allclose(y, x @ linear.dense().t(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["cpu_step", "transformers"])
@pytest.mark.parametrize(
    ("make", "method", "more"),
    [
        (tiny_llama, "rtn", {"q": 3}),
        (tiny_opt, "bcq", {"q": 3}),
        (tiny_opt, "mixed_2_4_16", MIXED),  # which is not cut into panels
    ],
)
def test_both_ways_leave_the_same_text_in_the_cache(make, method, more, name):
    model = lutlab.quantize(make().eval(), method=method, g=16, **more)
    own = lutlab.engine(model, batch=2, length=16, name=name)
    logits = {}
    for way in ("kernel", "dequantize"):
        first = ways.prefill(own, model, PROMPTS, way)
        assert own.positions == [11, 1]
        logits[way] = first, own.step(torch.tensor([3, 5])), own.step(torch.tensor([4, 6]))
    for kernel, dense in zip(*logits.values(), strict=True):
        assert torch.allclose(kernel, dense, atol=1e-4 * float(kernel.abs().max()))
    assert all("forward" not in vars(module) for module in model.modules())


def test_the_faster_way_is_kept(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(ways, "library", SimpleNamespace(cache_folder=lambda: tmp_path))
    seconds, timed = {"kernel": 2.0, "dequantize": 1.0}, []
    clock = lambda *arguments: timed.append(arguments[-1]) or seconds[arguments[-1]]  # noqa: E731
    monkeypatch.setattr(ways, "_seconds", clock)
    model = lutlab.quantize(tiny_llama(), method="rtn", q=4, g=16)
    own = lutlab.engine(model, batch=2, length=16)
    logits = ways.prefill(own, model, PROMPTS, "race")
    assert torch.equal(logits, ways.prefill(own, model, PROMPTS, "dequantize"))
    ways.prefill(own, model, PROMPTS, "race")
    assert timed == ["kernel", "dequantize"]
    (file,) = tmp_path.glob("prefill-*.sealed")
    file.write_bytes(file.read_bytes().replace(b'"dequantize"', b'"telepathy!"'))
    ways.prefill(own, model, PROMPTS, "race")
    assert len(timed) == 4
    assert "set aside" in caplog.text
