"""A streamed model is the model in memory to the bit, holds one block at a time, and names what is damaged."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.calibrated import Fake
from tests.models.architectures import CAUSAL, CONFIGS, config, make, randomized, token_ids, uniform
from tests.tiny_models import byte_tokenizer
from transformers import AutoModelForCausalLM

from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelSpec
from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import BlockStore
from lutlab.evaluators.lambada import lambada
from lutlab.evaluators.perplexity import window_nll
from lutlab.models.families import decoder_blocks
from lutlab.models.load import load_model
from lutlab.models.streamed import outside
from lutlab.modules import QuantLinear
from lutlab.quantizers.rtn import RTN


def loaded(folder, *, stream=True, source="folder", dtype=torch.float32, seed=0, layers=None):
    spec = ModelSpec("model", source, str(folder), layers=layers)
    return load_model(spec, dtype, "cpu", seed, stream=stream)


def save(model, folder, **options):
    model.save_pretrained(folder, **options)
    byte_tokenizer().save_pretrained(folder)
    return folder


def on_meta(model):
    """Names of block tensors that are on the meta device, and of those that are not."""
    found = {True: [], False: []}
    for index, block in enumerate(decoder_blocks(model)):
        for name, tensor in block.state_dict().items():
            found[tensor.is_meta].append(f"{index}.{name}")
    return found[True], found[False]


def assert_empty(model):
    shapes, tensors = on_meta(model)
    assert shapes
    assert not tensors
    kept = [
        n
        for n, m in model.named_modules()
        if isinstance(m, QuantLinear) and m._execution is not None
    ]
    assert not kept, "a freed block kept what multiplies"


def numbers(model, tokenizer):
    if model.config.model_type == "bert":
        with torch.inference_mode():
            return model(token_ids()).logits.tolist()
    text = [f"the {word} and the end of the {word}" for word in ("cat", "list", "heap")]
    scores = lambada(model, tokenizer, text)
    ids = token_ids(1, 96).flatten()
    return window_nll(model, ids, 32), scores


# ---- the same numbers ----


@pytest.mark.parametrize(
    ("name", "inputs"),
    [(name, ("quantized", "full")[at % 2]) for at, name in enumerate(CONFIGS)],
)
def test_quantized_and_evaluated_as_in_memory(name, inputs, tmp_path):
    folder, calibration = (
        save(make(name), tmp_path / "model", max_shard_size="20KB"),
        token_ids(2, 16),
    )
    memory, streamed = loaded(folder, stream=False), loaded(folder)
    assert_empty(streamed.model)
    fake = Fake(inputs, target="stream" if inputs == "quantized" else "weights")
    expected = quantize_model(memory.model, fake, uniform(memory.model, 3, 16), calibration)
    kept = BlockStore(tmp_path / "kept" / "id")
    found = quantize_model(
        streamed.model,
        fake,
        uniform(memory.model, 3, 16),
        calibration,
        blocks=streamed.blocks,
        kept=kept,
    )
    assert found == expected
    assert_empty(streamed.model)
    streamed.blocks.serve(kept.serve)
    assert numbers(streamed.model, streamed.tokenizer) == numbers(memory.model, memory.tokenizer)
    assert_empty(streamed.model)


def test_full_precision_is_served_too(tmp_path):
    folder = save(make("llama-2"), tmp_path / "model")
    memory, streamed = loaded(folder, stream=False), loaded(folder)
    chosen = dict.fromkeys(uniform(memory.model, 3, 16))
    kept = BlockStore(tmp_path / "kept" / "id")
    for one, store in ((memory, None), (streamed, kept)):
        quantize_model(one.model, RTN(), chosen, blocks=one.blocks, kept=store)
    streamed.blocks.serve(kept.serve)
    assert numbers(streamed.model, streamed.tokenizer) == numbers(memory.model, memory.tokenizer)


def test_a_block_that_is_gone_is_named(tmp_path):
    folder = save(make("opt"), tmp_path / "model")
    streamed, kept = loaded(folder), BlockStore(tmp_path / "kept" / "id")
    quantize_model(
        streamed.model, RTN(), uniform(streamed.model, 3, 16), blocks=streamed.blocks, kept=kept
    )
    streamed.blocks.serve(kept.serve)
    (tmp_path / "kept" / "id" / "block-0001.safetensors").unlink()
    with pytest.raises(LutlabError, match=r"block-0001\.safetensors is gone.*run again"):
        streamed.model(torch.zeros(1, 4, dtype=torch.int64))


# ---- checkpoints of every kind ----


def same_when_open(streamed, memory):
    for index, expected in enumerate(decoder_blocks(memory)):
        with streamed.blocks.open(index) as block:
            pairs = zip(block.state_dict().items(), expected.state_dict().items(), strict=True)
            assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)
            assert not any(parameter.requires_grad for parameter in block.parameters())
    assert_empty(streamed.model)
    for found, expected in zip(outside(streamed.model), outside(memory), strict=True):
        for (_, a), (_, b) in zip(
            found.named_parameters(recurse=False),
            expected.named_parameters(recurse=False),
            strict=True,
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard", ["20KB", "5GB"])
@pytest.mark.parametrize("name", ["opt", "llama-2", "gpt2"])
def test_single_file_and_shards_with_and_without_a_tied_head(name, shard, tied, tmp_path):
    chosen = config(name)
    chosen.tie_word_embeddings = tied
    model = randomized(AutoModelForCausalLM.from_config(chosen))
    save(model, tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "20KB")
    streamed = loaded(tmp_path)
    same_when_open(streamed, model)
    head, embedding = streamed.model.get_output_embeddings(), streamed.model.get_input_embeddings()
    assert (head.weight is embedding.weight) == tied


@pytest.mark.parametrize("name", CAUSAL)
def test_checkpoint_of_the_bare_decoder(name, tmp_path):
    """Names without `model.` or `transformer.`, as the hub's gpt2 has them; the head is tied."""
    chosen = config(name)
    chosen.tie_word_embeddings = True
    model = randomized(AutoModelForCausalLM.from_config(chosen))
    save(model, tmp_path)
    prefix = f"{model.base_model_prefix}."
    tensors = load_file(tmp_path / "model.safetensors")
    assert all(tensor.startswith(prefix) for tensor in tensors)
    bare = {tensor.removeprefix(prefix): value for tensor, value in tensors.items()}
    save_file(bare, tmp_path / "model.safetensors", {"format": "pt"})
    same_when_open(loaded(tmp_path), model)


@pytest.mark.parametrize(("stored", "dtype"), [("float16", "float32"), ("float32", "bfloat16")])
def test_dtype(stored, dtype, tmp_path):
    save(make("opt").to(getattr(torch, stored)), tmp_path)
    streamed = loaded(tmp_path, dtype=getattr(torch, dtype))
    same_when_open(streamed, loaded(tmp_path, stream=False, dtype=getattr(torch, dtype)).model)
    with streamed.blocks.open(0) as block:
        assert {p.dtype for p in block.parameters()} == {getattr(torch, dtype)}


def test_head_tied_by_config_and_stored_all_the_same(tmp_path):
    model = make("opt")
    save(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.decoder.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    same_when_open(loaded(tmp_path), model)
    tensors["lm_head.weight"][3, 4] += 1
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        LutlabError, match=r"ties lm_head\.weight to .*tie_word_embeddings to false"
    ):
        loaded(tmp_path)


# ---- synthetic ----


@pytest.mark.parametrize("name", CONFIGS)
def test_synthetic_blocks_are_the_same_every_time_and_in_memory(name, tmp_path):
    config(name).save_pretrained(tmp_path)
    streamed = loaded(tmp_path, source="synthetic")
    assert_empty(streamed.model)
    memory = loaded(tmp_path, source="synthetic", stream=False).model
    for _ in range(2):
        same_when_open(streamed, memory)
    ids = token_ids(2, 16)
    assert memory(ids).logits.isfinite().all()
    first, second = (block.state_dict() for block in decoder_blocks(memory))
    drawn = [n for n, tensor in first.items() if tensor.ndim == 2]
    assert not any(torch.equal(first[n], second[n]) for n in drawn)
    other = loaded(tmp_path, source="synthetic", stream=False, seed=1).model
    assert not torch.equal(other(ids).logits, memory(ids).logits)


# ---- memory ----


def test_one_block_at_a_time(tmp_path):
    """While a block is open, or runs, the others are shapes."""
    folder, seen = save(make("gpt-neo"), tmp_path / "model"), []
    streamed = loaded(folder)

    def watch(*_):
        seen.append({name.partition(".")[0] for name in on_meta(streamed.model)[1]})

    kept, fake = BlockStore(tmp_path / "kept" / "id"), Fake(inputs="quantized", watch=watch)
    quantize_model(
        streamed.model, fake, uniform(streamed.model, 3, 16), token_ids(2, 16),
        blocks=streamed.blocks, kept=kept,
    )  # fmt: skip
    assert seen == [{"0"}] * 6 + [{"1"}] * 6
    seen.clear()
    streamed.blocks.serve(kept.serve)
    for block in decoder_blocks(streamed.model):
        block.ln_2.register_forward_hook(watch)
    streamed.model(token_ids())
    assert seen == [{"0"}, {"1"}]
    assert_empty(streamed.model)


def test_a_block_is_freed_after_an_error(tmp_path):
    streamed = loaded(save(make("opt"), tmp_path))
    with pytest.raises(RuntimeError, match="stop"), streamed.blocks.open(1):
        raise RuntimeError("stop")
    assert_empty(streamed.model)


def test_computed_buffers_stay(tmp_path):
    """GPT-Neo's masks are in no checkpoint: freeing them would leave nothing to mask with."""
    streamed = loaded(save(make("gpt-neo"), tmp_path))
    with streamed.blocks.open(1):
        pass
    masks = [b for n, b in streamed.model.named_buffers() if n.endswith("attention.bias")]
    assert len(masks) == 2
    assert not any(mask.is_meta for mask in masks)


# ---- damage ----


@pytest.fixture
def folder(tmp_path):
    return save(make("opt"), tmp_path / "model", max_shard_size="20KB")


def change(folder, name, tensor):
    """Replace a weight where it is stored."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    path = folder / index["weight_map"][name]
    tensors = load_file(path)
    tensors[name] = tensor(tensors[name])
    save_file(tensors, path, {"format": "pt"})


def refused_when_open(folder, message, **options):
    streamed = loaded(folder, **options)
    with pytest.raises(LutlabError, match=message) as caught:
        quantize_model(
            streamed.model, RTN(), uniform(streamed.model, 3, 16), blocks=streamed.blocks
        )
    assert str(folder) in str(caught.value)
    assert_empty(streamed.model)


def test_missing_shard(folder):
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(LutlabError, match=f"lacks {shard.name}: .*fetch the missing shards"):
        loaded(folder)


@pytest.mark.parametrize("kept", [0, 4, 50, -1])
def test_truncated_shard(folder, kept):
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:kept])
    with pytest.raises(LutlabError, match=r"cannot read .*damaged or truncated, fetch it again"):
        loaded(folder)


def test_shard_that_is_damaged_while_blocks_are_read(folder):
    streamed = loaded(folder)
    for shard in folder.glob("model-*.safetensors"):
        shard.write_bytes(b"")
    with pytest.raises(LutlabError, match=r"cannot read .*fetch it again"), streamed.blocks.open(1):
        pass


def test_weight_of_another_shape(folder):
    change(folder, "model.decoder.layers.1.fc2.bias", lambda bias: torch.zeros(33))
    refused_when_open(
        folder, r"weight model\.decoder\.layers\.1\.fc2\.bias holds \[33\] instead of \[32\]"
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weight_that_is_no_number(folder, bad):
    change(
        folder,
        "model.decoder.layers.1.fc2.bias",
        lambda bias: bias.index_fill(0, torch.tensor(3), bad),
    )
    refused_when_open(folder, r"fc2\.bias holds NaN or infinite values")
    change(folder, "model.decoder.final_layer_norm.bias", lambda bias: bias * bad)
    with pytest.raises(LutlabError, match=r"final_layer_norm\.bias holds NaN or infinite values"):
        loaded(folder)


def test_weight_beyond_half_precision(folder):
    change(folder, "model.decoder.layers.1.fc2.weight", lambda weight: weight * 1e6)
    refused_when_open(folder, "holds NaN or infinite values.*half", dtype=torch.float16)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (3, r"lacks 16 weights .*first model\.decoder\.layers\.2\."),
        (1, r"holds 16 tensors that its config.json has no place for"),
    ],
)
def test_checkpoint_of_another_config(folder, layers, message):
    """Found when the model is loaded, not hours later at the block."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": layers}))
    with pytest.raises(LutlabError, match=message):
        loaded(folder)


def test_streamed_and_spread_exclude_each_other(folder):
    with pytest.raises(LutlabError, match="take one"):
        load_model(
            ModelSpec("model", "folder", str(folder)), torch.float32, "spread", 0, stream=True
        )
