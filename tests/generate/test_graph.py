"""The step that a GPU replays, run without graphs: the logits that the model gives without a cache, row by row."""

import copy
from types import SimpleNamespace

import pytest
import torch
from tests.generate.test_eager import alone
from tests.kernels.gpu import test_lut_gemv
from tests.models.architectures import CAUSAL, make, token_ids
from tests.models.architectures import config as config_of

import lutlab
from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.formats.bcq import PackedBCQ
from lutlab.generate import engines_of, graph
from lutlab.generate.graph import GraphStep, fuse
from lutlab.kernels.gpu import choice
from lutlab.kernels.joined import RowsOf, Whole
from lutlab.models import fits
from lutlab.models.families import linear_layers
from lutlab.modules import QuantLinear

gpu = test_lut_gemv.gpu
FAMILIES = tuple(name for name in CAUSAL if name != "gpt-neo")


class Recorder:
    """In the place of CUDA graphs: warms up as they do, and says what is captured and replayed."""

    def __init__(self):
        self.said = []

    def __call__(self, run, undo):
        for _ in range(graph.WARM_UP):
            run()
            undo()
        self.said.append("captured")

        def replay():
            self.said.append("replayed")
            run()

        return replay


def follows(own, model, near):
    """Whether an engine over buckets of 8, 12 and 16 slots gives the logits of a model without a cache."""
    texts = [token_ids(length=n)[0] for n in (7, 3, 9)][: own.batch]
    logits = own.prefill(texts).cpu()
    for _ in range(5):  # from a bucket into the next one
        expected = torch.stack([alone(model, ids) for ids in texts])
        torch.testing.assert_close(logits, expected, atol=near, rtol=near)
        chosen = logits.argmax(-1)
        texts = [torch.cat([ids, one[None]]) for ids, one in zip(texts, chosen, strict=True)]
        logits = own.step(chosen).cpu()
    assert own.positions == [len(ids) for ids in texts]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_gives_the_logits_of_a_forward_without_a_cache(family, monkeypatch):
    monkeypatch.setattr(graph, "BUCKETS", (8, 12))
    model = make(family)
    lutlab.quantize(model, "rtn", q=4, g=8)
    for batch in (1, 3):
        follows(GraphStep(model, batch, 16, "", Recorder()), model, 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["rtn", "bcq"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_captured_graph_gives_them_too(family, method, monkeypatch):
    monkeypatch.setattr(graph, "BUCKETS", (8, 12))
    model = make(family)
    lutlab.quantize(model, method, q=3, g=32)
    there = copy.deepcopy(model).cuda()
    for batch in (1, 3):
        own = lutlab.engine(there, batch, 16, name="cuda_graph")
        follows(own, model, 1e-3)
        own.rewind(1)
        first = torch.arange(batch)
        chosen = own.greedy(first, 12)
        own.rewind(1)
        for at, ids in enumerate([first, *chosen.cpu().T[:-1]]):
            assert torch.equal(own.step(ids).argmax(-1), chosen[:, at])
        assert own.facts()["buckets"] == [8, 12, 16]


def test_greedy_is_step_and_argmax_and_graphs_are_captured_once(monkeypatch):
    monkeypatch.setattr(graph, "BUCKETS", (8,))
    capture, model = Recorder(), make("llama-2")
    own = GraphStep(model, 2, 12, "", capture)
    prompts = [token_ids(length=6)[0], token_ids(length=3)[1]]
    ids = first = own.prefill(prompts).argmax(-1)
    expected = []
    for _ in range(5):
        ids = own.step(ids).argmax(-1)
        expected.append(ids)
    own.prefill(prompts)
    assert torch.equal(own.greedy(first, 5), torch.stack(expected, 1))
    assert own.positions == [11, 8]
    assert own.facts()["buckets"] == [8, 12]
    assert capture.said.count("captured") == 2
    assert capture.said.count("replayed") == 10
    with pytest.raises(LutlabError, match="2 tokens, and the cache has room for 1"):
        own.greedy(first, 2)


def test_a_rewound_row_goes_on_after_its_own_first_tokens():
    model = make("opt")
    prompts = [token_ids(length=6)[0], token_ids(length=4)[1]]
    with torch.inference_mode():  # and is used outside of it
        own = GraphStep(model, 2, 12, "")
        own.prefill(prompts)
    own.rewind(3)
    logits = own.step(torch.stack([ids[3] for ids in prompts]))
    expected = torch.stack([alone(model, ids[:4]) for ids in prompts])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    own.rewind()
    assert own.positions == [0, 0]


def test_what_it_reads_and_what_it_refuses():
    model = make("llama-2")
    lutlab.quantize(model, "bcq", q=3, g=8)
    own = GraphStep(model, 2, 256, "")
    # Layers, rows, slots, keys and values, heads of 8, float32.
    kept = 2 * 2 * 256 * 2 * (2 * 8) * 4
    assert own.facts()["cache_bytes"] == kept
    assert own.bytes_read(100)["cache"] == kept // 2
    assert own.bytes_read(129)["cache"] == kept
    assert own.bytes_read(1)["head"] == model.lm_head.weight.nbytes
    assert own.bytes_read(1)["weights"] == sum(
        m.ready(2, torch.float32).bytes_read(2, torch.float32)
        for m in model.modules()
        if isinstance(m, QuantLinear)
    )
    known = {name for name, family in registry.classes("family").items() if family.graphs}
    assert {make(name).config.model_type for name in FAMILIES} == known


def test_the_engine_made_for_a_device_is_tried_first():
    assert engines_of("cpu") == ["cpu_step", "transformers"]
    assert engines_of("cuda") == ["cuda_graph", "transformers"]
    assert engines_of("meta") == []


def test_why_a_model_has_no_graph():
    def obstacle(device="cuda", family="opt", cache="", **changed):
        config = config_of(family)
        for name, value in {"_attn_implementation": "sdpa", **changed}.items():
            setattr(config, name, value)
        parts = [SimpleNamespace(device=torch.device(one)) for one in device.split()]
        first = parts[0].device
        model = SimpleNamespace(
            device=first, config=config, dtype=torch.float16, parameters=lambda: parts
        )
        return GraphStep.obstacle(model, cache)

    assert obstacle() == obstacle(cache="float16") == ""
    assert "the model is on cpu" in obstacle("cpu")
    assert "over several devices" in obstacle("cuda:0 cuda:1")
    assert "not 'gpt_neo'" in obstacle(family="gpt-neo")
    assert "attention 'flex_attention'" in obstacle(_attn_implementation="flex_attention")
    assert "'dynamic' chooses" in obstacle(
        family="llama-1", rope_parameters={"rope_type": "dynamic"}
    )
    assert "float16, not float32" in obstacle(cache="float32")


def test_a_cache_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(fits, "available", lambda device: 4_000)
    model = make("llama-2")  # 256 bytes a token: 2 layers, keys and values, 2 heads of 8, float32
    with pytest.raises(LutlabError, match=r"a cache of 2 x 8 tokens needs .* cache"):
        GraphStep(model, 2, 8, "")
    GraphStep(model, 1, 15, "")


@pytest.mark.parametrize(("family", "method", "q"), [("qwen2", "rtn", 4), ("llama-2", "bcq", 3)])
def test_joined_layers_give_the_same_bits_and_stay_themselves(family, method, q):
    """Products do. Logits need not: torch's silu takes the last 48 % 32 numbers of a row one by one with AVX-512."""
    model, ids = make(family), token_ids()[0]
    lutlab.quantize(model, method, q=q, g=8)
    x = torch.randn(5, model.config.hidden_size, generator=torch.Generator().manual_seed(0))

    def products(model):
        layers = dict(linear_layers(model)).values()
        return [layer(x) for layer in layers if layer.in_features == x.shape[1]]

    before, expected, separate = model.state_dict(), alone(model, ids), products(model)
    for _ in range(2):  # again is no change
        assert fuse(model, 1, torch.float32) == []
        parts = [m.execution for _, m in linear_layers(model) if isinstance(m.execution, RowsOf)]
        wholes = {one.whole for one in parts}
        assert (len(parts), len(wholes)) == (2 * 5, 2 * 2)  # q, k, v and gate, up of two blocks
    assert all(map(torch.equal, products(model), separate))
    torch.testing.assert_close(alone(model, ids), expected)
    assert sum(one.bytes_read(1, torch.float32) for one in parts) == sum(
        one.execution.bytes_read(1, torch.float32) for one in wholes
    )
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    alike = copy.deepcopy(model)
    assert all(map(torch.equal, products(alike), separate))
    torch.testing.assert_close(alone(alike, ids), expected)


def test_a_product_serves_each_part_once():
    calls = []

    def multiply(x):
        calls.append(x)
        return torch.arange(5.0) * x

    whole = Whole(multiply, (range(2), range(2, 5)))
    one, other = torch.ones(1), torch.full((1,), 2.0)
    assert whole.rows(range(2), one).tolist() == [0, 1]
    assert whole.rows(range(2, 5), one).tolist() == [2, 3, 4]
    assert whole.rows(range(2), one.mul_(3)).tolist() == [0, 3]  # the same tensor of other numbers
    assert whole.rows(range(2), one).tolist() == [0, 3]  # a part that is called twice
    assert whole.rows(range(2, 5), other).tolist() == [4, 6, 8]
    assert len(calls) == 4


def test_why_layers_are_not_joined():
    model = make("llama-2")
    lutlab.quantize(model, "rtn", q=4, g=8, skip=["*.up_proj"], layers={"*.k_proj": (3, 8)})
    (why,) = fuse(model, 1, torch.float32)
    assert "weights of other layouts cannot be joined" in why
    assert GraphStep(model, 1, 8, "").facts()["not_joined"] == [why]


def test_the_layers_of_a_gpu_are_joined_and_held_once(gpu, monkeypatch):
    """The executions that a GPU has, their kernels as C++: one launch for q, k and v, in the kernel's layout alone."""
    model = make("opt")
    lutlab.quantize(model, "bcq", q=2, g=32, offset=True)
    prompts = [token_ids(length=3)[0], token_ids(length=2)[1]]
    expected = torch.stack([alone(model, ids) for ids in prompts])
    alike = copy.deepcopy(model)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a stand-in")
    monkeypatch.setattr(PackedBCQ, "kernels", {"cpu": ("lut_gemv",)})
    monkeypatch.setattr(choice, "choose", lambda *_: ("lane_tables", ""))
    own = GraphStep(alike, 2, 8, "", Recorder())
    torch.testing.assert_close(own.prefill(prompts), expected, atol=1e-4, rtol=1e-4)
    chosen = expected.argmax(-1)
    texts = [torch.cat([ids, one[None]]) for ids, one in zip(prompts, chosen, strict=True)]
    expected = torch.stack([alone(model, ids) for ids in texts])
    torch.testing.assert_close(own.step(chosen), expected, atol=1e-4, rtol=1e-4)
    assert "lane_tables" in own.facts()["kernel"][0]
    layers = [layer for _, layer in linear_layers(alike)]
    assert [isinstance(layer.execution, RowsOf) for layer in layers] == [True] * 3 + [False] * 3 + [
        True
    ] * 3 + [False] * 3
    assert not any(list(layer.buffers()) for layer in layers)
    before = model.state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in alike.state_dict().items())
