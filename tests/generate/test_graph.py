"""The step that a GPU replays, run without graphs: the logits that the model gives without a cache, row by row."""

import copy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tests.base.refusals import refused
from tests.generate.rows import alone, check, longer, prompts
from tests.kernels.gpu import test_lut_gemv
from tests.models.architectures import CAUSAL, make
from tests.models.architectures import config as config_of

import lutlab
from lutlab.base import registry
from lutlab.formats.bcq import PackedBCQ
from lutlab.generate import engines_of, graph
from lutlab.generate.graph import GraphStep, fuse
from lutlab.kernels.gpu import choice
from lutlab.kernels.joined import RowsOf, Whole
from lutlab.models.families import linear_layers

gpu = test_lut_gemv.gpu
FAMILIES = tuple(name for name in CAUSAL if name != "gpt-neo")


class Recorder:
    """In the place of CUDA graphs: warms up as they do, and notes what is captured and replayed."""

    def __init__(self):
        self.events = []

    def __call__(self, run, undo):
        for _ in range(graph.WARM_UP):
            run()
            undo()
        self.events.append("captured")
        return lambda: self.events.append("replayed") or run()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_gives_the_logits_of_a_forward_without_a_cache(family, monkeypatch):
    """Over buckets of 8, 12 and 16 slots, from one into the next."""
    monkeypatch.setattr(graph, "BUCKETS", (8, 12))
    model = lutlab.quantize(make(family), "rtn", q=4, g=8)
    for texts in (prompts(7), prompts(7, 3, 9)):
        check(GraphStep(model, len(texts), 16, "", Recorder()), model, texts, 5)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["rtn", "bcq"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_captured_graph_gives_them_too(family, method, monkeypatch):
    monkeypatch.setattr(graph, "BUCKETS", (8, 12))
    model = lutlab.quantize(make(family), method, q=3, g=32)
    there = copy.deepcopy(model).cuda()
    for texts in (prompts(7), prompts(7, 3, 9)):
        own = lutlab.engine(there, len(texts), 16, name="cuda_graph")
        check(own, model, texts, 5, partial(torch.testing.assert_close, atol=1e-3, rtol=1e-3))
        own.rewind(1)
        first = torch.arange(len(texts))
        chosen = own.greedy(first, 12)
        own.rewind(1)
        for at, ids in enumerate([first, *chosen.cpu().T[:-1]]):
            assert torch.equal(own.step(ids).argmax(-1), chosen[:, at])
        assert own.facts()["buckets"] == [8, 12, 16]


def test_greedy_is_step_and_argmax_and_graphs_are_captured_once(monkeypatch):
    monkeypatch.setattr(graph, "BUCKETS", (8,))
    capture = Recorder()
    own = GraphStep(make("llama-2"), 2, 12, "", capture)
    ids = [own.prefill(prompts(6, 3)).argmax(-1)]
    for _ in range(5):
        ids.append(own.step(ids[-1]).argmax(-1))
    own.prefill(prompts(6, 3))
    assert torch.equal(own.greedy(ids[0], 5), torch.stack(ids[1:], 1))
    assert (own.positions, own.facts()["buckets"]) == ([11, 8], [8, 12])
    assert [capture.events.count(kind) for kind in ("captured", "replayed")] == [2, 10]
    refused("2 tokens, and the cache has room for 1", own.greedy, ids[0], 2)


def test_what_it_reads_and_what_it_takes():
    model = lutlab.quantize(make("llama-2"), "bcq", q=3, g=8)
    own = GraphStep(model, 2, 256, "")
    # Layers, rows, slots, keys and values, heads of 8, float32.
    kept = 2 * 2 * 256 * 2 * (2 * 8) * 4
    assert own.facts()["cache_bytes"] == kept
    assert [own.bytes_read(context)["cache"] for context in (100, 129)] == [kept // 2, kept]
    layers = [layer.ready(2, torch.float32) for _, layer in linear_layers(model)]
    weights = sum(layer.bytes_read(2, torch.float32) for layer in layers)
    head = model.lm_head.weight.nbytes
    assert own.bytes_read(1).items() >= {"weights": weights, "head": head}.items()
    known = {name for name, family in registry.classes("family").items() if family.graphs}
    assert {make(name).config.model_type for name in FAMILIES} == known


def test_the_engine_made_for_a_device_is_tried_first_and_why_a_model_has_no_graph():
    assert engines_of("cpu") == ["cpu_step", "transformers"]
    assert engines_of("cuda") == ["cuda_graph", "transformers"]
    assert engines_of("meta") == []

    def obstacle(device="cuda", family="opt", cache="", **changed):
        config = config_of(family)
        for name, value in {"_attn_implementation": "sdpa", **changed}.items():
            setattr(config, name, value)
        parts = [SimpleNamespace(device=torch.device(part)) for part in device.split()]
        model = SimpleNamespace(config=config, dtype=torch.float16, parameters=lambda: parts)
        model.device = parts[0].device
        return GraphStep.obstacle(model, cache)

    assert obstacle() == obstacle(cache="float16") == ""
    rope = {"rope_type": "dynamic"}
    for message, options in (
        ("the model is on cpu", {"device": "cpu"}),
        ("over several devices", {"device": "cuda:0 cuda:1"}),
        ("not 'gpt_neo'", {"family": "gpt-neo"}),
        ("attention 'flex_attention'", {"_attn_implementation": "flex_attention"}),
        ("'dynamic' chooses", {"family": "llama-1", "rope_parameters": rope}),
        ("float16, not float32", {"cache": "float32"}),
    ):
        assert message in obstacle(**options)


@pytest.mark.parametrize(("family", "method", "q"), [("qwen2", "rtn", 4), ("llama-2", "bcq", 3)])
def test_joined_layers_give_the_same_bits_and_stay_themselves(family, method, q):
    """Products do. Logits need not: torch's silu takes the last 48 % 32 numbers of a row one by one with AVX-512."""
    model, texts = lutlab.quantize(make(family), method, q=q, g=8), prompts(16)
    x = torch.randn(5, model.config.hidden_size, generator=torch.Generator().manual_seed(0))

    def products(model):
        layers = dict(linear_layers(model)).values()
        return [layer(x) for layer in layers if layer.in_features == x.shape[1]]

    before, expected, separate = model.state_dict(), alone(model, texts), products(model)
    for _ in range(2):  # again is no change
        assert fuse(model, 1, torch.float32) == []
        parts = [m.execution for _, m in linear_layers(model) if isinstance(m.execution, RowsOf)]
        wholes = {part.whole for part in parts}
        assert (len(parts), len(wholes)) == (2 * 5, 2 * 2)  # q, k, v and gate, up of two blocks
    held = sum(whole.execution.bytes_read(1, torch.float32) for whole in wholes)
    assert sum(part.bytes_read(1, torch.float32) for part in parts) == held
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    for joined in (model, copy.deepcopy(model)):
        assert all(map(torch.equal, products(joined), separate))
        torch.testing.assert_close(alone(joined, texts), expected)


def test_a_product_serves_each_part_once_and_a_reason_tells_what_is_not_joined():
    calls = []
    whole = Whole(lambda x: calls.append(x) or torch.arange(5.0) * x, (range(2), range(2, 5)))
    ones, twos = torch.ones(1), torch.full((1,), 2.0)
    assert whole.rows(range(2), ones).tolist() == [0, 1]
    assert whole.rows(range(2, 5), ones).tolist() == [2, 3, 4]
    threes = ones.mul_(3)  # the same tensor of other numbers
    assert whole.rows(range(2), threes).tolist() == [0, 3]
    assert whole.rows(range(2), threes).tolist() == [0, 3]  # a part that is called twice
    assert whole.rows(range(2, 5), twos).tolist() == [4, 6, 8]
    assert len(calls) == 4
    options = {"skip": ["*.up_proj"], "layers": {"*.k_proj": (3, 8)}}
    model = lutlab.quantize(make("llama-2"), "rtn", q=4, g=8, **options)
    (why,) = fuse(model, 1, torch.float32)
    assert "weights of other layouts cannot be joined" in why
    assert GraphStep(model, 1, 8, "").facts()["not_joined"] == [why]


def test_the_layers_of_a_gpu_are_joined_and_held_once(gpu, monkeypatch):
    """The executions that a GPU has, their kernels as C++: one launch for q, k and v, in the kernel's layout alone."""
    model = lutlab.quantize(make("opt"), "bcq", q=2, g=32, offset=True)
    texts, alike = prompts(3, 2), copy.deepcopy(model)
    expected = alone(model, texts)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a stand-in")
    monkeypatch.setattr(PackedBCQ, "kernels", {"cpu": ("lut_gemv",)})
    monkeypatch.setattr(choice, "choose", lambda *_: ("lane_tables", ""))
    own = GraphStep(alike, 2, 8, "", Recorder())
    torch.testing.assert_close(own.prefill(texts), expected, atol=1e-4, rtol=1e-4)
    chosen = expected.argmax(-1)
    expected = alone(model, longer(texts, chosen))
    torch.testing.assert_close(own.step(chosen), expected, atol=1e-4, rtol=1e-4)
    assert "lane_tables" in own.facts()["kernel"][0]
    layers = [layer for _, layer in linear_layers(alike)]
    joined = [isinstance(layer.execution, RowsOf) for layer in layers]
    assert joined == ([True] * 3 + [False] * 3) * 2
    assert not any([*layer.buffers()] for layer in layers)
    torch.testing.assert_close(dict(alike.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
