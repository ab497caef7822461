"""Kept blocks and statistics come back bit for bit; what is damaged, foreign or does not fit says so."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.models.architectures import CONFIGS, make, token_ids, uniform

from lutlab.compress.calibrate import capture, observe
from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import BlockStore, StatsStore
from lutlab.errors import LutlabError
from lutlab.models.families import decoder_blocks, family_of
from lutlab.models.streamed import release
from lutlab.modules import QuantLinear
from lutlab.quantizers.bcq import BCQ
from lutlab.quantizers.rtn import RTN


def same(block, other):
    pairs = zip(block.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and x.dtype == y.dtype and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.fixture
def kept(tmp_path):
    """A store with the two blocks of an OPT, and that model."""
    model, store = make("opt"), BlockStore(tmp_path / "some-id")
    quantize_model(model, RTN(), uniform(model, 3, 16), kept=store)
    return model, store


def path_of(store, index=1):
    return next(store.folder.glob(f"*-{index:04}.safetensors"))


def rewrite(path, change_tensors=lambda t: t, change_facts=lambda f: f, of=None):
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["lutlab"])
    facts = {"of": of or header["of"], "facts": change_facts(header["facts"])}
    save_file(change_tensors(load_file(path)), path, {"lutlab": json.dumps(facts)})


# ---- blocks ----


@pytest.mark.parametrize("quantizer", [RTN(), RTN(scale_dtype="fp32"), BCQ()])
@pytest.mark.parametrize("name", CONFIGS)
def test_blocks_come_back_bit_for_bit(name, quantizer, tmp_path):
    model, store = make(name), BlockStore(tmp_path / "id")
    stats = quantize_model(model, quantizer, uniform(model, 3, -1), kept=store)
    fresh = make(name)
    loaded = [store.load(i, block, "cpu") for i, block in enumerate(decoder_blocks(fresh))]
    assert tuple(layer for block in loaded for layer in block) == stats
    assert same(model, fresh)
    assert torch.equal(model(token_ids()).logits, fresh(token_ids()).logits)
    assert not list(store.folder.glob(".*")), "a draft was left behind"


def test_layers_in_full_precision_come_back(tmp_path):
    model, store = make("opt"), BlockStore(tmp_path / "id")
    chosen = uniform(model, 3, 16) | {"model.decoder.layers.1.fc2": None}
    stats = quantize_model(model, RTN(), chosen, kept=store)
    fresh = make("opt")
    assert quantize_model(fresh, RTN(), chosen, kept=store) == stats
    assert not isinstance(fresh.model.decoder.layers[1].fc2, QuantLinear)
    assert same(model, fresh)


def test_a_block_comes_back_onto_shapes_and_over_itself(kept):
    """As it is served: again and again, freed in between."""
    model, store = kept
    block = decoder_blocks(make("opt"))[1]
    for _ in range(2):
        release(block)
        assert all(tensor.is_meta for tensor in block.state_dict().values())
        store.load(1, block, "cpu")
        assert same(block, decoder_blocks(model)[1])
    store.load(1, block, "cpu")
    assert same(block, decoder_blocks(model)[1])


def test_nothing_kept_leaves_the_block_alone(tmp_path):
    store, block = BlockStore(tmp_path / "id"), decoder_blocks(make("opt"))[0]
    assert not store.has(0)
    assert store.load(0, block, "cpu") is None
    assert same(block, decoder_blocks(make("opt"))[0])


def test_released_shapes_are_those_of_the_block():
    block, expected = decoder_blocks(make("gpt-neo"))[1], decoder_blocks(make("gpt-neo"))[1]
    mask = block.attn.attention.bias
    release(block)
    state = expected.state_dict()
    assert {n: t.shape for n, t in block.state_dict().items()} == {
        n: t.shape for n, t in state.items()
    }
    assert block.attn.attention.bias is mask


# ---- damage ----


def refused(store, message, index=1):
    with pytest.raises(LutlabError, match=message) as caught:
        store.load(index, decoder_blocks(make("opt"))[index], "cpu")
    assert str(path_of(store, index)) in str(caught.value)
    assert "delete that file and run again" in str(caught.value)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_truncated_block(kept, size):
    _, store = kept
    path = path_of(store)
    path.write_bytes(path.read_bytes()[:size])
    refused(store, r"is damaged \(.*the other blocks are kept")


@pytest.mark.parametrize("header", [None, {}, {"lutlab": "{"}, {"lutlab": "[]"}, {"lutlab": "{}"}])
def test_block_without_our_header(kept, header):
    _, store = kept
    save_file(load_file(path_of(store)), path_of(store), header)
    refused(store, r"is damaged \(")


def test_block_of_another_run(kept):
    _, store = kept
    rewrite(path_of(store), of="another-id")
    refused(store, "belongs to another-id, another model or another way to quantize it")


def without(name):
    return lambda tensors: {n: t for n, t in tensors.items() if n != name}


def with_layout(**change):
    def changed(facts):
        facts["layouts"]["fc1"] |= change
        return facts

    return changed


@pytest.mark.parametrize(
    "damage",
    [
        {"change_tensors": without("fc1.qweight")},
        {"change_tensors": without("final_layer_norm.bias")},
        {"change_tensors": lambda t: t | {"fc9.weight": torch.ones(2)}},
        {"change_tensors": lambda t: t | {"fc1.scale": torch.ones(2)}},
        {"change_facts": lambda f: {"layers": f["layers"]}},
        {"change_facts": lambda f: f | {"layouts": {"fc9": f["layouts"]["fc1"]}}},
        {"change_facts": lambda f: f | {"layers": [{"name": "x"}]}},
        {"change_facts": lambda f: f | {"layouts": [], "layers": None}},
        {"change_facts": lambda f: None},
        {"change_facts": with_layout(q=9)},
        {"change_facts": with_layout(q=4)},
        {"change_facts": with_layout(colour="red")},
    ],
)
def test_block_that_does_not_fit(kept, damage):
    _, store = kept
    rewrite(path_of(store), **damage)
    refused(store, r"does not fit the model \(.+\): delete that file and run again")


def test_block_of_a_model_of_other_sizes(kept):
    _, store = kept
    with pytest.raises(LutlabError, match="does not fit the model"):
        store.load(0, decoder_blocks(make("llama-1"))[0], "cpu")


def test_an_error_of_a_block_ends_the_run(kept):
    _, store = kept
    path_of(store).write_bytes(b"")
    model = make("opt")
    with pytest.raises(LutlabError, match=r"block-0001\.safetensors is damaged"):
        quantize_model(model, RTN(), uniform(model, 3, 16), kept=store)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "id").write_text("a file")
    model = make("opt")
    with pytest.raises(
        LutlabError, match=r"cannot write .*block-0000.*check the folder and run again"
    ):
        quantize_model(model, RTN(), uniform(model, 3, 16), kept=BlockStore(tmp_path / "id"))


# ---- statistics ----


@pytest.fixture
@torch.no_grad()
def seen(tmp_path):
    """Statistics of the first block of an OPT, and a store of them."""
    model, store = make("opt"), StatsStore(tmp_path / "some-id")
    inputs = family_of(model.config).inputs
    stats = observe(decoder_blocks(model)[0], capture(model, token_ids(2, 16)), inputs)
    store.save(0, stats)
    return stats, store


def test_statistics_come_back_bit_for_bit(seen):
    stats, store = seen
    found = store.load(0, list(stats), torch.device("cpu"))
    assert list(found) == list(stats)
    for shared, one in stats.items():
        assert torch.equal(found[shared].hessian, one.hessian)
        assert torch.equal(found[shared].mean_abs, one.mean_abs)
        assert found[shared].tokens == one.tokens == 32


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), r"is damaged \("),
        (lambda p: rewrite(p, of="other"), "belongs to other"),
        (
            lambda p: rewrite(p, without("fc1.hessian")),
            r"does not fit the model \('fc1\.hessian'\)",
        ),
        (lambda p: rewrite(p, without("fc1.mean_abs")), "does not fit the model"),
        (lambda p: rewrite(p, change_facts=without("fc1")), "does not fit the model"),
        (lambda p: rewrite(p, change_facts=lambda f: None), "does not fit the model"),
    ],
)
def test_damaged_statistics(seen, damage, message):
    stats, store = seen
    damage(path_of(store, 0))
    with pytest.raises(LutlabError, match=message) as caught:
        store.load(0, list(stats), torch.device("cpu"))
    assert "delete that file and run again" in str(caught.value)
