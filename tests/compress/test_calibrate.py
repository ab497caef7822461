"""Hidden states and statistics, block by block, are those of the whole model to the bit."""

import re

import pytest
import torch
from tests.compress.passes import inputs_of
from tests.models.architectures import CONFIGS, config, make, randomized, token_ids
from tests.quantizers.weights import assert_same
from torch.nn import functional

from lutlab.base.errors import LutlabError
from lutlab.compress.calibrate import advance, capture, observe, stats_of
from lutlab.models.families import decoder_blocks, family_of, linear_layers, model_class

SAMPLES, SEQLEN = 6, 16  # GPT-Neo's local attention sees 4 tokens
pytestmark = pytest.mark.usefixtures("two_windows_a_batch")


def made(name, attention):
    torch.manual_seed(0)
    chosen = config(name)
    model = model_class(chosen).from_config(chosen, attn_implementation=attention)
    return randomized(model)


def whole_model(model, windows, batch=2):
    """Outputs of every block, and inputs of every linear layer, a tensor a batch, of whole forward passes."""
    blocks = [[] for _ in decoder_blocks(model)]
    hooks = [  # GPT-Neo's blocks return a tuple, the others a tensor
        block.register_forward_hook(
            lambda _, __, out, to=to: to.append(out[0] if type(out) is tuple else out)
        )
        for block, to in zip(decoder_blocks(model), blocks, strict=True)
    ]
    inputs = inputs_of(model, windows, [name for name, _ in linear_layers(model)], batch)
    for hook in hooks:
        hook.remove()
    return blocks, inputs


@pytest.mark.parametrize(("name", "attention"), [
    *((name, "sdpa") for name in CONFIGS if name != "gpt-neo"), *((name, "eager") for name in CONFIGS),
])  # fmt: skip
@torch.no_grad()
def test_hidden_states_are_those_of_the_whole_model(name, attention):
    """Eager attention sees the future where blocks are called without the model's mask."""
    model, windows = made(name, attention), token_ids(SAMPLES, SEQLEN)
    expected, _ = whole_model(model, windows)
    inputs = capture(model, windows)
    assert [len(batch) for batch in inputs.hidden] == [2, 2, 2]
    for block, outputs in zip(decoder_blocks(model), expected, strict=True):
        assert not advance(block, inputs)
        assert_same(inputs.hidden, outputs)


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_statistics_are_the_means_over_all_tokens(name):
    model, windows = make(name), token_ids(SAMPLES, SEQLEN)
    _, seen = whole_model(model, windows)
    family, inputs = family_of(model.config), capture(model, windows, 50.0)
    read, counted = set(), []
    weights = torch.ones(SAMPLES, SEQLEN, dtype=torch.float64)
    weights[:, 0] = 50.0  # of attention's inputs alone
    for index, block in enumerate(decoder_blocks(model)):
        early = observe(block, inputs, family.inputs)
        stats = advance(block, inputs, family.inputs)
        assert list(stats) == list(early) == list(family.inputs)
        for shared, ours in stats.items():
            for layer in shared.layers:
                batches = seen[f"{family.blocks}.{index}.{layer}"]
                read.add(batches[0].data_ptr())
                x = torch.cat(batches).double()
                assert ours.tokens == len(x) == SAMPLES * SEQLEN
                hessian = x.T @ x / len(x)
                assert (ours.hessian - hessian).abs().max() < 1e-6 * hessian.diagonal().max(), layer
                mean = x.abs().mean(0).float()
                torch.testing.assert_close(ours.mean_abs, mean, rtol=1e-6, atol=1e-8)
                assert ours.hessian.dtype == torch.float32
                if re.search(r"q_proj|query|c_attn", layer):
                    weighted = x.T @ (x * weights.view(-1, 1)) / len(x)
                    error = (ours.weighted - weighted).abs().max()
                    assert error < 1e-6 * weighted.diagonal().max(), layer
                    counted.append(layer)
            assert_same(vars(early[shared]), vars(ours))
        assert len(counted) == index + 1
        assert [shared for shared in stats if stats[shared].weighted is not None] == [
            family.inputs[0]
        ]
    assert len(read) == 2 * len(family.inputs), "layers of another input read another tensor"


def test_observe_stops_at_the_last_layer_that_is_asked_for():
    model, called = make("opt"), []
    family, block = family_of(model.config), decoder_blocks(model)[0]
    for layer in family.linears:
        hook = lambda *_, layer=layer: called.append(layer)  # noqa: E731
        block.get_submodule(layer).register_forward_hook(hook)
    inputs = capture(model, token_ids(1, SEQLEN))
    before = [batch.clone() for batch in inputs.hidden]
    assert list(observe(block, inputs, family.inputs[1:2])) == [family.inputs[1]]
    assert called == ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
    assert_same(inputs.hidden, before)


def test_no_block_runs_in_capture_and_no_hook_stays():
    model, called = make("gpt2"), []
    for block in decoder_blocks(model):
        block.register_forward_hook(lambda *_: called.append(1))
    capture(model, token_ids(2, SEQLEN))
    assert not called
    assert not decoder_blocks(model)[0]._forward_pre_hooks
    with pytest.raises(LutlabError, match=r"windows of 65 tokens exceed .* 64: take calibration"):
        capture(model, token_ids(1, 65))


@pytest.mark.parametrize("samples", [1, 3, 5, 7])
@torch.no_grad()
def test_batches_are_equal_whatever_the_number_of_windows(samples):
    """Arguments of one batch serve all, so none may be smaller."""
    model, windows = make("llama-2"), token_ids(samples, 8)
    inputs = capture(model, windows)
    assert len({len(batch) for batch in inputs.hidden}) == 1
    for block in decoder_blocks(model):
        advance(block, inputs)
    expected, _ = whole_model(model, windows, len(inputs.hidden[0]))
    assert_same(inputs.hidden, expected[-1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@torch.no_grad()
def test_activations_that_are_no_numbers_are_refused(bad):
    model = make("opt")
    first, block = decoder_blocks(model)
    block.self_attn_layer_norm.bias[3] = bad
    inputs = capture(model, token_ids(1, SEQLEN))
    advance(first, inputs)
    with pytest.raises(LutlabError, match=r"inputs of self_attn\.q_proj are inf or nan"):
        observe(block, inputs, family_of(model.config).inputs)
    assert not block.get_submodule("self_attn.q_proj")._forward_pre_hooks


def test_statistics_of_a_matrix():
    stats = stats_of(torch.tensor([[1.0, -2.0], [3.0, 4.0]]))
    assert stats.hessian.tolist() == [[5.0, 5.0], [5.0, 10.0]]
    assert (stats.mean_abs.tolist(), stats.tokens) == ([2.0, 3.0], 2)
    half = stats_of(torch.full((3, 2), 300.0).half())  # 300^2 is beyond float16
    assert half.hessian.tolist() == [[9e4, 9e4], [9e4, 9e4]]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_padding_on_either_side_counts_for_nothing(name, side):
    """The reference is each text alone, which needs no padding and no mask."""
    model, lengths = make(name), (5, 16, 9)
    texts = [(token_ids(1, 16)[:, :length] + row) % 260 for row, length in enumerate(lengths)]
    pads = [(16 - length, 0) if side == "left" else (0, 16 - length) for length in lengths]

    def padded(rows, value):
        return torch.cat([functional.pad(*each, value=value) for each in zip(rows, pads, strict=True)])  # fmt: skip

    mask = padded([torch.ones_like(text) for text in texts], 0)
    together = second_block(model, {"input_ids": padded(texts, 7), "attention_mask": mask})
    alone = [second_block(model, text) for text in texts]
    for shared, stats in together.items():
        parts = [(each[shared], each[shared].tokens / sum(lengths)) for each in alone]
        assert stats.tokens == sum(lengths)
        hessian = sum(share * part.hessian for part, share in parts)
        atol = 1e-4 * hessian.abs().max().item()
        torch.testing.assert_close(stats.hessian, hessian, rtol=1e-4, atol=atol)
        mean = sum(share * part.mean_abs for part, share in parts)
        torch.testing.assert_close(stats.mean_abs, mean, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def second_block(model, windows):
    """Statistics of the inputs of the second block's linear layers."""
    blocks, inputs = decoder_blocks(model), capture(model, windows)
    advance(blocks[0], inputs)
    return observe(blocks[1], inputs, family_of(model.config).inputs)
