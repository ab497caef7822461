"""Hidden states and statistics, block by block, are those of the whole model to the bit."""

import pytest
import torch
from tests.models.architectures import CAUSAL, CONFIGS, config, make, randomized, token_ids
from torch.nn import functional

from lutlab.base.errors import LutlabError
from lutlab.compress import calibrate
from lutlab.compress.calibrate import advance, capture, observe, stats_of
from lutlab.models.families import decoder_blocks, family_of, linear_layers, model_class

SAMPLES, SEQLEN = 6, 16  # GPT-Neo's local attention sees 4 tokens


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Two windows a batch."""
    monkeypatch.setattr(calibrate, "BATCH_TOKENS", 2 * SEQLEN + 1)


def made(name, attention):
    torch.manual_seed(0)
    chosen = config(name)
    model = model_class(chosen).from_config(chosen, attn_implementation=attention)
    return randomized(model)


def whole_model(model, windows, batch=2):
    """Outputs of every block, and inputs X [M, K] of every linear layer, by hooks on whole forward passes."""
    blocks = [[] for _ in decoder_blocks(model)]
    inputs = {name: [] for name, _ in linear_layers(model)}
    hooks = [  # GPT-Neo's blocks return a tuple, the others a tensor
        block.register_forward_hook(
            lambda _, __, out, to=to: to.append(out[0] if type(out) is tuple else out)
        )
        for block, to in zip(decoder_blocks(model), blocks, strict=True)
    ]
    hooks += [
        module.register_forward_pre_hook(lambda _, args, to=inputs[name]: to.append(args[0]))
        for name, module in linear_layers(model)
    ]
    with torch.no_grad():
        for part in windows.split(batch):
            model(part, use_cache=False)
    for hook in hooks:
        hook.remove()
    return blocks, inputs


@pytest.mark.parametrize(
    ("name", "attention"),
    [(name, "sdpa") for name in CONFIGS if name != "gpt-neo"]
    + [(name, "eager") for name in ("opt", "llama-2", "bert", "gpt-neo")],
)
@torch.no_grad()
def test_hidden_states_are_those_of_the_whole_model(name, attention):
    model, windows = made(name, attention), token_ids(SAMPLES, SEQLEN)
    expected, _ = whole_model(model, windows)
    inputs = capture(model, windows)
    assert [len(batch) for batch in inputs.hidden] == [2, 2, 2]
    for block, outputs in zip(decoder_blocks(model), expected, strict=True):
        stats = advance(block, inputs)
        assert not stats
        assert all(map(torch.equal, inputs.hidden, outputs))


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_the_future_is_masked(name):
    """Blocks that were called without the model's mask would see it: eager attention without one is not causal."""
    model, windows = made(name, "eager"), token_ids(2, SEQLEN)
    changed = windows.clone()
    changed[:, -1] = (changed[:, -1] + 1) % model.config.vocab_size
    outputs = []
    for ids in (windows, changed):
        inputs = capture(model, ids)
        for block in decoder_blocks(model):
            advance(block, inputs)
        outputs.append(torch.cat(inputs.hidden))
    assert torch.equal(outputs[0][:, :-1], outputs[1][:, :-1])
    assert not torch.equal(outputs[0][:, -1], outputs[1][:, -1])


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_statistics_are_the_means_over_all_tokens(name):
    model, windows = make(name), token_ids(SAMPLES, SEQLEN)
    _, seen = whole_model(model, windows)
    family, inputs = family_of(model.config), capture(model, windows)
    for index, block in enumerate(decoder_blocks(model)):
        early = observe(block, inputs, family.inputs)
        stats = advance(block, inputs, family.inputs)
        assert list(stats) == list(early) == list(family.inputs)
        for shared, found in stats.items():
            for layer in shared.layers:
                x = torch.cat(seen[f"{family.blocks}.{index}.{layer}"]).flatten(0, -2)
                double = x.double()
                assert found.tokens == len(x) == SAMPLES * SEQLEN
                hessian = double.T @ double / len(x)
                scale = hessian.diagonal().max()
                assert (found.hessian - hessian).abs().max() < 1e-6 * scale, layer
                assert torch.allclose(found.mean_abs, double.abs().mean(0).float(), rtol=1e-6)
                assert found.hessian.dtype == found.mean_abs.dtype == torch.float32
            assert torch.equal(early[shared].hessian, found.hessian)
            assert torch.equal(early[shared].mean_abs, found.mean_abs)
            assert early[shared].tokens == found.tokens


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_of_a_shared_input_read_the_same_tensor(name):
    model = make(name)
    _, seen = whole_model(model, token_ids(2, SEQLEN))
    family = family_of(model.config)
    tensors = set()
    for index in range(len(decoder_blocks(model))):
        for shared in family.inputs:
            read = [seen[f"{family.blocks}.{index}.{layer}"][0] for layer in shared.layers]
            assert len({x.data_ptr() for x in read}) == 1, shared
            assert all(torch.equal(x, read[0]) for x in read)
            tensors.add(read[0].data_ptr())
    assert len(tensors) == 2 * len(family.inputs)  # and others read others


def test_observe_stops_at_the_last_layer_that_is_asked_for():
    model = make("opt")
    family, block = family_of(model.config), decoder_blocks(model)[0]
    called = []
    for layer in family.linears:
        hook = lambda *_, layer=layer: called.append(layer)  # noqa: E731
        block.get_submodule(layer).register_forward_hook(hook)
    inputs = capture(model, token_ids(1, SEQLEN))
    before = [batch.clone() for batch in inputs.hidden]
    stats = observe(block, inputs, family.inputs[1:2])
    assert list(stats) == [family.inputs[1]]
    assert called == ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
    assert all(map(torch.equal, inputs.hidden, before)), "observe moved the hidden states on"


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
    assert torch.equal(torch.cat(inputs.hidden), torch.cat(expected[-1]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@torch.no_grad()
def test_activations_that_are_no_numbers_are_refused(bad):
    model = make("opt")
    block = decoder_blocks(model)[1]
    block.self_attn_layer_norm.bias[3] = bad
    family = family_of(model.config)
    inputs = capture(model, token_ids(1, SEQLEN))
    advance(decoder_blocks(model)[0], inputs)
    with pytest.raises(LutlabError, match=r"inputs of self_attn\.q_proj are inf or nan"):
        observe(block, inputs, family.inputs)
    assert not block.get_submodule("self_attn.q_proj")._forward_pre_hooks


def test_statistics_of_a_matrix():
    x = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    stats = stats_of(x)
    assert stats.hessian.tolist() == [[5.0, 5.0], [5.0, 10.0]]
    assert stats.mean_abs.tolist() == [2.0, 3.0]
    assert stats.tokens == 2
    half = stats_of(torch.full((3, 2), 300.0).half())  # 300^2 is beyond float16
    assert half.hessian.tolist() == [[9e4, 9e4], [9e4, 9e4]]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_padding_on_either_side_counts_for_nothing(name, side):
    """The reference is each text alone, which needs no padding and no mask."""
    model, lengths = make(name), (5, 16, 9)
    texts = [(token_ids(1, 16)[:, :length] + row) % 260 for row, length in enumerate(lengths)]
    pads = [(16 - length, 0) if side == "left" else (0, 16 - length) for length in lengths]
    ids, mask = (
        torch.cat(
            [functional.pad(one, pad, value=value) for one, pad in zip(rows, pads, strict=True)]
        )
        for rows, value in ((texts, 7), ([torch.ones_like(text) for text in texts], 0))
    )
    found = second_block(model, {"input_ids": ids, "attention_mask": mask})
    alone = [second_block(model, text) for text in texts]
    for shared, stats in found.items():
        parts = [
            (one[shared], length / sum(lengths)) for one, length in zip(alone, lengths, strict=True)
        ]
        assert stats.tokens == sum(lengths)
        hessian = sum(share * one.hessian for one, share in parts)
        torch.testing.assert_close(
            stats.hessian, hessian, rtol=1e-4, atol=1e-4 * hessian.abs().max()
        )
        mean = sum(share * one.mean_abs for one, share in parts)
        torch.testing.assert_close(stats.mean_abs, mean, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def second_block(model, windows):
    """Statistics of the inputs of the second block's linear layers."""
    blocks, inputs = decoder_blocks(model), capture(model, windows)
    advance(blocks[0], inputs)
    return observe(blocks[1], inputs, family_of(model.config).inputs)
