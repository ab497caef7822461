"""A streamed model is the model in memory to the bit, holds one block at a time, and names what is damaged."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.base.refusals import refused
from tests.calibrated import Fake
from tests.models.architectures import CAUSAL, CONFIGS, config, make, randomized, token_ids, uniform
from tests.models.folders import change_tensors, change_weight, loaded, save, spec
from transformers import AutoModelForCausalLM

from lutlab.base.errors import LutlabError
from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import BlockStore
from lutlab.evaluators.lambada import lambada
from lutlab.evaluators.perplexity import window_nll
from lutlab.models.families import decoder_blocks
from lutlab.models.load import load_model
from lutlab.models.streamed import outside
from lutlab.modules import QuantLinear
from lutlab.quantizers.rtn import RTN


def open_blocks(model):
    """Numbers of the blocks of which a tensor is not on the meta device."""
    states = [block.state_dict() for block in decoder_blocks(model)]
    assert all(states)
    return [at for at, state in enumerate(states) if not all(x.is_meta for x in state.values())]


def assert_empty(model):
    assert open_blocks(model) == []
    layers = [module for module in model.modules() if isinstance(module, QuantLinear)]
    assert all(layer._execution is None for layer in layers), "a freed block kept what multiplies"


def numbers(loaded):
    if loaded.model.config.model_type == "bert":
        with torch.inference_mode():
            return loaded.model(token_ids()).logits.tolist()
    text = [f"the {word} and the end of the {word}" for word in ("cat", "list", "heap")]
    scores = lambada(loaded.model, loaded.tokenizer, text)
    return window_nll(loaded.model, token_ids(1, 96).flatten(), 32), scores


@pytest.fixture
def store(tmp_path):
    return BlockStore(tmp_path / "kept" / "id")


def quantized(loaded, method=None, *calibration, kept=None):
    """Statistics of the layers."""
    model, blocks = loaded.model, loaded.blocks
    widths = uniform(model, 3, 16)
    return quantize_model(model, method or RTN(), widths, *calibration, blocks=blocks, kept=kept)


@pytest.mark.parametrize(("name", "even"), [(name, at % 2 == 0) for at, name in enumerate(CONFIGS)])
def test_quantized_and_evaluated_as_in_memory(name, even, tmp_path, store):
    folder = save(make(name), tmp_path / "model", max_shard_size="20KB")
    memory, streamed = loaded(folder), loaded(folder, stream=True)
    assert_empty(streamed.model)
    fake = Fake("quantized", target="stream") if even else Fake("full", target="weights")
    ids = token_ids(2, 16)
    expected = quantize_model(memory.model, fake, uniform(memory.model, 3, 16), ids)
    assert quantized(streamed, fake, ids, kept=store) == expected
    assert_empty(streamed.model)
    streamed.blocks.serve(store.serve)
    assert numbers(streamed) == numbers(memory)
    assert_empty(streamed.model)


def test_full_precision_is_served_too(tmp_path, store):
    folder = save(make("llama-2"), tmp_path / "model")
    memory, streamed = loaded(folder), loaded(folder, stream=True)
    widths = dict.fromkeys(uniform(memory.model, 3, 16))
    quantize_model(memory.model, RTN(), widths)
    quantize_model(streamed.model, RTN(), widths, blocks=streamed.blocks, kept=store)
    streamed.blocks.serve(store.serve)
    assert numbers(streamed) == numbers(memory)


def test_a_block_that_is_gone_is_named(tmp_path, store):
    streamed = loaded(save(make("opt"), tmp_path / "model"), stream=True)
    quantized(streamed, kept=store)
    streamed.blocks.serve(store.serve)
    (tmp_path / "kept" / "id" / "block-0001.safetensors").unlink()
    refused(r"block-0001\.safetensors is gone.*run again", streamed.model, token_ids())


def same_when_open(streamed, memory):
    for index, expected in enumerate(decoder_blocks(memory)):
        with streamed.blocks.open(index) as block:
            assert_same(block.state_dict(), expected.state_dict())
            assert not any(parameter.requires_grad for parameter in block.parameters())
    assert_empty(streamed.model)
    for module, expected in zip(outside(streamed.model), outside(memory), strict=True):
        assert_same(*(dict(m.named_parameters(recurse=False)) for m in (module, expected)))


def assert_same(state, expected):
    torch.testing.assert_close(dict(state), dict(expected), rtol=0, atol=0)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard", ["20KB", "5GB"])
@pytest.mark.parametrize("name", ["opt", "llama-2", "gpt2"])
def test_single_file_and_shards_with_and_without_a_tied_head(name, shard, tied, tmp_path):
    model = tied_or_not(name, tied)
    save(model, tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "20KB")
    streamed = loaded(tmp_path, stream=True)
    same_when_open(streamed, model)
    head, embedding = streamed.model.get_output_embeddings(), streamed.model.get_input_embeddings()
    assert (head.weight is embedding.weight) == tied


def tied_or_not(name, tied):
    chosen = config(name)
    chosen.tie_word_embeddings = tied
    return randomized(AutoModelForCausalLM.from_config(chosen))


@pytest.mark.parametrize("name", CAUSAL)
def test_checkpoint_of_the_bare_decoder(name, tmp_path):
    """Names without `model.` or `transformer.`, as the hub's gpt2 has them; the head is tied."""
    model = tied_or_not(name, True)
    save(model, tmp_path)
    prefix, path = f"{model.base_model_prefix}.", tmp_path / "model.safetensors"
    tensors = load_file(path)
    assert all(tensor.startswith(prefix) for tensor in tensors)
    bare = {tensor.removeprefix(prefix): value for tensor, value in tensors.items()}
    save_file(bare, path, {"format": "pt"})
    same_when_open(loaded(tmp_path, stream=True), model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtype(dtype, tmp_path):
    save(make("opt").to(torch.float16 if dtype == torch.float32 else torch.float32), tmp_path)
    streamed = loaded(tmp_path, stream=True, dtype=dtype)
    same_when_open(streamed, loaded(tmp_path, dtype=dtype).model)
    with streamed.blocks.open(0) as block:
        assert {p.dtype for p in block.parameters()} == {dtype}


def test_head_tied_by_config_and_stored_all_the_same(tmp_path):
    model, embeddings = make("opt"), "model.decoder.embed_tokens.weight"
    save(model, tmp_path)
    change_tensors(tmp_path, lambda x: x.update({"lm_head.weight": x[embeddings].clone()}))
    same_when_open(loaded(tmp_path, stream=True), model)
    change_tensors(tmp_path, lambda x: x["lm_head.weight"][3, 4].add_(1))
    refused(r"ties lm_head\.weight to .*_embeddings to false", loaded, tmp_path, stream=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_synthetic_blocks_are_the_same_every_time_and_in_memory(name, tmp_path):
    config(name).save_pretrained(tmp_path)
    streamed = loaded(tmp_path, "synthetic", stream=True)
    assert_empty(streamed.model)
    memory, other = (loaded(tmp_path, "synthetic", seed).model for seed in (0, 1))
    for _ in range(2):
        same_when_open(streamed, memory)
    ids = token_ids(2, 16)
    assert memory(ids).logits.isfinite().all()
    first, second = (block.state_dict() for block in decoder_blocks(memory))
    drawn = [n for n, tensor in first.items() if tensor.ndim == 2]
    assert not any(torch.equal(first[n], second[n]) for n in drawn)
    assert not torch.equal(other(ids).logits, memory(ids).logits)


def test_one_block_at_a_time(tmp_path, store):
    """While a block is open, or runs, the others are shapes."""
    streamed, seen = loaded(save(make("gpt-neo"), tmp_path / "model"), stream=True), []

    def watch(*_):
        seen.append(open_blocks(streamed.model))

    quantized(streamed, Fake(inputs="quantized", watch=watch), token_ids(2, 16), kept=store)
    assert seen == [[0]] * 6 + [[1]] * 6
    seen.clear()
    streamed.blocks.serve(store.serve)
    for block in decoder_blocks(streamed.model):
        block.ln_2.register_forward_hook(watch)
    streamed.model(token_ids())
    assert seen == [[0], [1]]
    assert_empty(streamed.model)


def test_a_block_is_freed_after_an_error(tmp_path):
    streamed = loaded(save(make("opt"), tmp_path), stream=True)
    with pytest.raises(RuntimeError, match="stop"), streamed.blocks.open(1):
        raise RuntimeError("stop")
    assert_empty(streamed.model)


def test_computed_buffers_stay(tmp_path):
    """GPT-Neo's masks are in no checkpoint: freeing them would leave nothing to mask with."""
    streamed = loaded(save(make("gpt-neo"), tmp_path), stream=True)
    with streamed.blocks.open(1):
        pass
    masks = [b for n, b in streamed.model.named_buffers() if n.endswith("attention.bias")]
    assert [mask.is_meta for mask in masks] == [False, False]


@pytest.mark.parametrize("size", [0, 4, 50, -1])
def test_truncated_shard(tmp_path, size):
    save(make("opt"), tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:size])
    refused("cannot read .*damaged or truncated, fetch it again", loaded, tmp_path, stream=True)


def test_shard_that_is_damaged_while_blocks_are_read(folder):
    streamed = loaded(folder, stream=True)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(LutlabError, match=r"cannot read .*fetch it"), streamed.blocks.open(1):
        pass


@pytest.mark.parametrize(("change", "message"), [
    (lambda bias: torch.zeros(33), r"layers\.1\.fc2\.bias holds \[33\] instead of \[32\]"),
    (lambda bias: bias * torch.nan, "fc2.bias holds NaN or infinite values"),
])  # fmt: skip
def test_a_damaged_block_is_freed(folder, change, message):
    change_weight(folder, "model.decoder.layers.1.fc2.bias", change)
    streamed = loaded(folder, stream=True)
    with pytest.raises(LutlabError, match=message) as caught:
        quantized(streamed)
    assert str(folder) in str(caught.value)
    assert_empty(streamed.model)


def test_streamed_and_spread_exclude_each_other(folder):
    refused("take one", load_model, spec(folder), torch.float32, "spread", 0, stream=True)
