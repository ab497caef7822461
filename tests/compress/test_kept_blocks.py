"""Kept blocks and statistics come back bit for bit; what is damaged or foreign is set aside, and made again."""

import copy
import json
import random
import re
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save, save_file
from tests.calibrated import Fake
from tests.compress.passes import quantized
from tests.models.architectures import DIFFERENT, make, token_ids, uniform
from tests.quantizers.weights import assert_same

from lutlab.base.errors import LutlabError
from lutlab.compress.calibrate import capture, observe
from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import BlockStore, StatsStore, content_sha256
from lutlab.models.families import decoder_blocks, family_of
from lutlab.models.streamed import release
from lutlab.modules import QuantLinear
from lutlab.quantizers.bcq import BCQ
from lutlab.quantizers.rtn import RTN


def opt_block(index=1):
    return decoder_blocks(make("opt"))[index]


@pytest.fixture
def kept(tmp_path):
    """A store with the two blocks of an OPT, and that model."""
    store = BlockStore(tmp_path / "some-id")
    return quantized("opt", RTN(), kept=store)[0], store


def path_of(store, index=1):
    return next(store.folder.glob(f"*-{index:04}.safetensors"))


def rewrite(path, change_tensors=lambda t: t, change_facts=lambda f: f):
    """Another content under a right digest, as a version of lutlab may write it that this one does not read."""
    with safe_open(path, framework="pt") as file:
        content = json.loads(file.metadata()["lutlab"].partition("\n")[2])
    content["facts"] = change_facts(content["facts"])
    header, tensors = json.dumps(content), change_tensors(load_file(path))
    save_file(tensors, path, {"lutlab": f"{content_sha256(header, tensors)}\n{header}"})


# ---- blocks ----


@pytest.mark.parametrize("name", DIFFERENT)
def test_blocks_come_back_bit_for_bit(name, tmp_path):
    """Formats take turns: what a file holds of a layer does not depend on the family. One layer is not quantized."""
    method = (RTN(), RTN(scale_dtype="fp32"), BCQ())[DIFFERENT.index(name) % 3]
    model, fresh, store = make(name), make(name), BlockStore(tmp_path / "id")
    chosen = uniform(model, 3, -1)
    *_, last = chosen
    stats = quantize_model(model, method, chosen | {last: None}, kept=store)
    loaded = [store.load(i, block, "cpu") for i, block in enumerate(decoder_blocks(fresh))]
    assert tuple(layer for block in loaded for layer in block) == stats
    assert_same(fresh.state_dict(), model.state_dict())
    assert not isinstance(fresh.get_submodule(last), QuantLinear)
    assert torch.equal(model(token_ids()).logits, fresh(token_ids()).logits)
    assert not list(store.folder.glob(".*")), "a draft was left behind"


def test_a_block_comes_back_onto_shapes_and_over_itself(kept):
    """As it is served: again and again, freed in between."""
    (model, store), block = kept, opt_block()
    for freed in (True, True, False):
        if freed:
            release(block)
            assert all(tensor.is_meta for tensor in block.state_dict().values())
        store.load(1, block, "cpu")
        assert_same(block.state_dict(), decoder_blocks(model)[1].state_dict())


def test_released_shapes_are_those_of_the_block():
    block, expected = decoder_blocks(make("gpt-neo"))[1], decoder_blocks(make("gpt-neo"))[1]
    mask = block.attn.attention.bias
    release(block)
    shapes = [{n: t.shape for n, t in b.state_dict().items()} for b in (block, expected)]
    assert shapes[0] == shapes[1]
    assert block.attn.attention.bias is mask


# ---- damage ----


def damages(path, other):
    """Bytes that are not those of `path`: each kind of damage, and its cause as it is reported."""
    whole, chance = path.read_bytes(), random.Random(7)
    tensors = load(whole)  # load_file would map the file that is damaged next
    begin = 8 + int.from_bytes(whole[:8], "little")
    for size in (0, 7, 100, len(whole) - 1):
        yield whole[:size], r"\w+Error: "
    yield whole + b"0", "SafetensorError: "
    yield whole[:begin] + bytes(len(whole) - begin), "its digest is not that of its content"
    yield other.read_bytes(), f"it is {other.name} of {other.parent.name}"
    for _ in range(60):
        at, bit = chance.randrange(len(whole)), 1 << chance.randrange(8)
        flipped = bytes([whole[at] ^ bit])
        yield whole[:at] + flipped + whole[at + 1 :], r"its digest|it is|\w+Error: "
    for digested in ('{"of": "some-id"}', f"{content_sha256('[]', tensors)}\n[]"):
        yield save(tensors, {"lutlab": digested}), r"its digest|\w+Error: "
    for metadata in (None, {}):
        yield save(tensors, metadata), r"its digest|\w+Error: "


def test_every_damage_of_a_block_is_noticed_and_the_file_set_aside(kept, caplog):
    model, store = kept
    path, place = path_of(store), path_of(store).with_name("block-0001.safetensors.damaged")
    whole, expected = path.read_bytes(), decoder_blocks(model)[1]
    before, block = opt_block(), opt_block()
    for number, (data, cause) in enumerate(damages(path, path_of(store, 0))):
        caplog.clear()
        path.write_bytes(data)
        if store.load(1, block, "cpu") is None:
            assert_same(block.state_dict(), before.state_dict())  # it is as it was
            assert place.read_bytes() == data
            place.unlink()
            (line,) = caplog.messages
            assert re.search(rf"block-0001\.safetensors is damaged \(({cause}).*set aside as", line)
        else:  # a space or an escape in the header: nothing that was read is different
            assert number > 6
            assert_same(block.state_dict(), expected.state_dict())
            block = copy.deepcopy(before)
    path.write_bytes(whole)
    assert store.has(1)


def test_a_block_of_another_folder_is_not_taken(kept):
    _, store = kept
    other = BlockStore(shutil.copytree(store.folder, store.folder.with_name("other-id")))
    assert not other.has(0)
    place = path_of(other)
    place.unlink()
    place.mkdir()  # a folder in a file's place
    assert other.load(1, opt_block(), "cpu") is None
    assert sorted(p.suffix for p in other.folder.iterdir()) == [".damaged", ".damaged"]


@pytest.mark.parametrize(("inputs", "calls"), [("quantized", 12), ("full", 6)])
def test_a_damaged_block_is_quantized_again(inputs, calls, tmp_path):
    """With those behind it that saw what it gave; the model is the one of a run without damage."""
    store, seen = BlockStore(tmp_path / "id"), StatsStore(tmp_path / "seen")
    model, stats = quantized("opt", Fake(inputs), token_ids(), kept=store, seen=seen)
    damage = [path_of(store, 0), path_of(seen, 1)] if inputs == "full" else [path_of(store, 0)]
    for path in damage:
        path.write_bytes(path.read_bytes()[:-2] + b"ab")
    fake = Fake(inputs)
    again, others = quantized("opt", fake, token_ids(), kept=store, seen=seen)
    assert (others, fake.quantized) == (stats, calls)
    assert_same(again.state_dict(), model.state_dict())
    assert all(path.with_name(f"{path.name}.damaged").exists() for path in damage)
    assert all(store.has(index) for index in (0, 1))


def without(name):
    return lambda tensors: {n: t for n, t in tensors.items() if n != name}


@pytest.mark.parametrize("damage", [
    {"change_tensors": without("fc1.qweight")},
    {"change_tensors": without("final_layer_norm.bias")},
    {"change_tensors": lambda t: t | {"fc9.weight": torch.ones(2)}},
    {"change_tensors": lambda t: t | {"fc1.scale": torch.ones(2)}},
    {"change_facts": lambda f: {"layers": f["layers"]}},
    {"change_facts": lambda f: f | {"layouts": {"fc9": f["layouts"]["fc1"]}}},
    {"change_facts": lambda f: f | {"layers": [{"name": "x"}]}},
    {"change_facts": lambda f: f | {"layouts": [], "layers": None}},
    {"change_facts": lambda f: None},
    {"change_facts": lambda f: f["layouts"]["fc1"].update(q=9) or f},
    {"change_facts": lambda f: f["layouts"]["fc1"].update(q=4) or f},
    {"change_facts": lambda f: f["layouts"]["fc1"].update(colour="red") or f},
])  # fmt: skip
def test_block_that_does_not_fit(kept, damage):
    _, store = kept
    rewrite(path_of(store), **damage)
    message = r"block-0001\.safetensors does not fit the model \(.+\): delete that file and run"
    with pytest.raises(LutlabError, match=message):
        store.load(1, opt_block(), "cpu")


def test_block_of_a_model_of_other_sizes(kept):
    _, store = kept
    with pytest.raises(LutlabError, match="does not fit the model"):
        store.load(0, decoder_blocks(make("llama-1"))[0], "cpu")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "id").write_text("a file")
    with pytest.raises(LutlabError, match=r"cannot write .*block-0000.*check the folder and run"):
        quantized("opt", RTN(), kept=BlockStore(tmp_path / "id"))


# ---- statistics ----


@pytest.fixture
@torch.no_grad()
def seen(tmp_path):
    """Statistics of the first block of an OPT, and a store of them."""
    model, store = make("opt"), StatsStore(tmp_path / "some-id")
    inputs = family_of(model.config).inputs
    stats = observe(decoder_blocks(model)[0], capture(model, token_ids()), inputs)
    store.save(0, stats)
    return stats, store


def test_statistics_come_back_bit_for_bit(seen):
    stats, store = seen
    loaded = store.load(0, list(stats), torch.device("cpu"))
    assert list(loaded) == list(stats)
    for shared, expected in stats.items():
        assert_same(vars(loaded[shared]), vars(expected))
        assert expected.tokens == 32


@pytest.mark.parametrize(("damage", "message"), [
    (lambda p: p.write_bytes(p.read_bytes()[:-1]), "is gone, which was there"),
    (lambda p: rewrite(p, without("fc1.hessian")), r"does not fit the model \('fc1\.hessian'\)"),
    (lambda p: rewrite(p, without("fc1.mean_abs")), "does not fit the model"),
    (lambda p: rewrite(p, change_facts=without("fc1")), "does not fit the model"),
    (lambda p: rewrite(p, change_facts=lambda f: None), "does not fit the model"),
])  # fmt: skip
def test_damaged_statistics(seen, damage, message):
    stats, store = seen
    damage(path_of(store, 0))
    with pytest.raises(LutlabError, match=rf"{message}.*run again"):
        store.load(0, list(stats), torch.device("cpu"))
