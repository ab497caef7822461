"""GGUF files read dense: against transformers' own reader, and what their types hold against the package gguf."""

import json
import struct
import tracemalloc

import pytest
import torch
from jinja2.exceptions import SecurityError
from tests.base.refusals import refused
from tests.gguf import gguf_files
from tests.models.architectures import logits
from tests.models.folders import loaded, spec
from tests.tiny_models import byte_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import gguf as package
from lutlab.formats import pack
from lutlab.gguf import blocks as gguf_blocks
from lutlab.gguf import folder as gguf
from lutlab.gguf.config import outline_of
from lutlab.gguf.header import read_header, types
from lutlab.gguf.weights import as_stored
from lutlab.models.families import linear_layers
from lutlab.models.load import fingerprint, task_here
from lutlab.models.shape import linear_shapes, shape_of

TEXT = "the attack ate a hat  12 345, ünïcode\n\n7"


def written(folder, name="llama", *kinds, **keys):
    return gguf_files.write(folder / f"{name}.gguf", gguf_files.make(name), *kinds, **keys)


def dequantized(data, kind):
    if kind in ("Q1_0", "Q2_0"):  # which the package does not dequantize
        return torch.from_numpy(gguf_files.dequantized(data, kind))
    return torch.from_numpy(package.quants.dequantize(data, package.GGMLQuantizationType[kind]))


@pytest.mark.parametrize("scale", [0.02, 3e4, 2e-7])
@pytest.mark.parametrize("kind", gguf_blocks.TYPES)
def test_blocks_are_what_the_package_dequantizes(kind, scale):
    data = gguf_files.random_blocks(kind, 5, 512, scale / 4)
    weight = pack(gguf_blocks.unpacked(data, kind)).dequantize()
    assert torch.equal(weight, dequantized(data, kind))


# ---- models ----

TYPES = {
    "q_proj": "Q4_0", "k_proj": "Q8_0", "v_proj": "Q4_K", "o_proj": "Q4_1", "gate_proj": "Q6_K", "up_proj": "F16",
    "down_proj": "IQ4_NL", "lm_head": "Q6_K", "embed_tokens": "Q8_0",
}  # fmt: skip


IDS = torch.tensor([[5, 9, 200, 31, 7, 7, 120]])


@pytest.mark.parametrize("name", gguf_files.CONFIGS)
def test_a_model_is_the_one_that_was_written(name, tmp_path):
    file = spec(written(tmp_path, name))
    back = loaded(file.id)
    assert torch.equal(logits(back.model, IDS), logits(gguf_files.make(name), IDS))
    assert back.tokenizer(TEXT)["input_ids"] == byte_tokenizer()(TEXT)["input_ids"]
    assert back.tokenizer.chat_template
    assert shape_of(file).parameters == sum(p.numel() for p in back.model.parameters())
    assert linear_shapes(file) == {n: tuple(m.weight.shape) for n, m in linear_layers(back.model)}
    assert task_here(file) == "causal_lm"
    assert fingerprint(file).startswith("gguf:")


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_a_dense_model_is_the_one_that_transformers_reads(name, tmp_path):
    """Which leaves out the biases of llama-biases."""
    path = written(tmp_path, name, lambda n: TYPES[n.split(".")[-2]])
    file = {"gguf_file": path.name}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, **file)
    ours = loaded(path)
    assert torch.equal(logits(ours.model, IDS), logits(theirs, IDS))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, **file)
    assert ours.tokenizer(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]
    config, known = json.loads((gguf.unpacked(path) / "config.json").read_text()), theirs.config
    for key in config.keys() - {"architectures", "head_dim"}:  # which it leaves out of Qwen2's
        assert config[key] == known.to_dict().get(key, config[key]), key


@pytest.mark.parametrize(("kind", "number"), [("Q1_0", 41), ("Q2_0", 42)])
def test_one_bit_and_two_bits_are_read_dense(kind, number, tmp_path):
    """Types that the package does not dequantize; of Q2_0 it may not even know the number."""
    data, path = gguf_files.random_blocks(kind, 3, 256), tmp_path / "x.gguf"
    entry = header(tensors=1, rest=tensor("a", (256, 3), number))
    path.write_bytes(entry + bytes(-len(entry) % 32) + data.tobytes())
    assert torch.equal(as_stored(read_header(path), "a").float(), dequantized(data, kind))


def test_a_model_in_shards_is_the_same(tmp_path, monkeypatch):
    path = written(tmp_path)
    whole = gguf.unpacked(path)
    monkeypatch.setattr(gguf, "_SHARD_BYTES", 2**19)
    monkeypatch.setattr(gguf, "cache_folder", lambda name: tmp_path / "other" / name)
    shards = gguf.unpacked(path)
    assert len(list(shards.glob("model-*.safetensors"))) > 2
    first, second = (AutoModelForCausalLM.from_pretrained(f).state_dict() for f in (whole, shards))
    torch.testing.assert_close(dict(first), dict(second), rtol=0, atol=0)


def test_llama_3_rotates_by_the_factors_of_its_file(tmp_path):
    model, path = gguf_files.make("llama"), tmp_path / "x.gguf"
    parameters = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    model.config.rope_parameters = parameters
    rotary = type(model.model.rotary_emb)(model.config)
    plain = 1 / 5e5 ** (torch.arange(0, 64, 2).float() / 64)
    model.rope_freqs = torch.nn.ParameterDict({"weight": plain / rotary.inv_freq})
    assert outline_of(gguf_files.write(path, model)).config["rope_parameters"] == parameters
    model.rope_freqs["weight"].data[3] *= 1.5
    gguf_files.write(path, model)
    refused(r"rope_freqs\.weight\) are not Llama 3's", outline_of, path)


@pytest.mark.parametrize(("pre", "text", "tokens"), [
    ("gpt-2", "a  12", ["a", "Ġ", "Ġ12"]),
    ("smollm", "a  12", ["a", "ĠĠ", "1", "2"]),
    ("llama-bpe", "12 345", ["12", "Ġ", "345"]),
    ("qwen2", "12", ["1", "2"]),
])  # fmt: skip
def test_text_is_cut_as_the_file_says(pre, text, tokens, tmp_path):
    tokenizer = loaded(written(tmp_path, pre=pre)).tokenizer
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [piece for piece, _ in pieces] == tokens


def test_nothing_of_a_file_or_beside_it_runs(tmp_path):
    """A template that would run a program is a text; what a folder's files ask for is that folder's, not the file's."""
    mark = tmp_path / "ran"
    template = f"{{{{ cycler.__init__.__globals__.os.system('touch {mark}') }}}}"
    path = written(tmp_path, template=template)
    (tmp_path / "own.py").write_text(f"open({str(mark)!r}, 'w')\n")
    trap = {"AutoTokenizer": ["own.T", None], "AutoConfig": "own.C"}
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(json.dumps({"auto_map": trap, "bos_token": "th"}))
    tokenizer = loaded(path).tokenizer
    assert (tokenizer.chat_template, tokenizer.bos_token) == (template, "<s>")
    with pytest.raises(SecurityError):  # where it is rendered, it is in transformers' sandbox
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}])
    assert not mark.exists()


def key(name, kind, value):
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def header(*, version=3, tensors=0, keys=0, rest=b""):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def tensor(name, sizes=(32,), kind=0, offset=0):
    sizes = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return struct.pack("<Q", len(name)) + name.encode() + sizes + struct.pack("<IQ", kind, offset)


def one_key(kind, form, *values):
    return header(keys=1, rest=key("a", kind, struct.pack(form, *values)))


def one_tensor(*fields, **others):
    return header(tensors=1, rest=tensor("a", *fields, **others))


BILLION = 10**9
DAMAGED = {
    "an empty file": (b"", "empty"),
    "another file": (b"PK\3\4" + bytes(60), "does not begin with GGUF"),
    "a first version": (header(version=1), "of version 1"),
    "of the other order": (header(version=3 << 24), "big-endian"),
    "a count of tensors": (header(tensors=BILLION), "announces 1000000000 tensors"),
    "a count of keys": (header(keys=BILLION), "announces 1000000000 keys"),
    "a long name": (header(keys=1, rest=struct.pack("<Q", 2**63) + bytes(40)), "bytes long"),
    "no text": (header(keys=1, rest=struct.pack("<Q", 2) + b"\xff\xff" + bytes(40)), "no UTF-8"),
    "an unknown value": (one_key(77, "9x"), "unknown type"),
    "a long text": (one_key(8, "<Q", BILLION), "bytes long"),
    "a list of numbers": (one_key(9, "<IQ", 4, BILLION), "announces 1000000000 elements"),
    "a list of texts": (one_key(9, "<IQ", 8, BILLION), "announces 1000000000 elements"),
    "a list of lists": (one_key(9, "<IQ", 9, BILLION), "elements of a type"),
    "a text in a list": (one_key(9, "<IQQ", 8, 1, BILLION), "bytes long"),
    "a key twice": (header(keys=2, rest=key("a", 0, b"1") * 2 + bytes(9)), "the key 'a' twice"),
    "a tensor twice": (header(tensors=2, rest=tensor("a") * 2), "the tensor 'a' twice"),
    "many sizes": (one_tensor((32,) * 5), "5 dimensions"),
    "no size": (one_tensor((0,)), r"sizes \[0\]"),
    "part of a block": (one_tensor((33,), 2), "32 weights of a row"),
    "an unknown type": (one_tensor(kind=99), "type 99.*pip install -U gguf"),
    "beyond the end": (one_tensor((2**62,) * 4), "ends at byte"),
    "an offset beyond": (one_tensor(offset=2**63), "ends at byte"),
    "an odd offset": (one_tensor(offset=3), "multiple of 32"),
    "in one another": (
        header(tensors=2, rest=tensor("a") + tensor("b", offset=32) + bytes(500)), "inside of another"),
    "an odd alignment": (
        header(keys=1, rest=key("general.alignment", 4, struct.pack("<I", 33))), "no power of two"),
    "no architecture": (header(), "general.architecture.* is None"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_header_is_one_message(name, tmp_path):
    content, message = DAMAGED[name]
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    types()  # imports the package, before memory is counted
    tracemalloc.start()
    refused(rf"cannot read .*x\.gguf.*{message}", outline_of, path)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


@pytest.mark.parametrize(("keys", "message"), [
    ({"llama__expert_count": 8}, r"key llama\.expert_count \(8\)"),
    ({"llama__rope__scaling__type": "yarn"}, "rope.scaling.type"),
    ({"llama__new_thing": 1.5}, r"llama\.new_thing"),
    ({"llama__rope__dimension_count": 32, "llama__attention__key_length": 64}, "of 64 numbers, 32 are rotated"),
    ({"split__count": 3}, "one of 3 files of a model: join them"),
    ({"pre": "of-tomorrow"}, "'of-tomorrow', and lutlab cuts text as"),
    ({"tokenizer": False}, "its tokenizer .* is None"),
])  # fmt: skip
def test_what_is_not_read_is_refused(keys, message, tmp_path):
    refused(message, gguf.unpacked, written(tmp_path, **keys))
    assert not list((tmp_path / "cache" / "gguf").glob("*"))


@pytest.mark.parametrize(("name", "old", "new", "message"), [
    ("llama", b"blk.1.ffn_up.weight", b"blk.1.ffn_ux.weight", r"lacks the tensor blk\.1\.ffn_up\.weight"),
    ("llama-biases", b"blk.0.attn_q.bias", b"blk.0.attn_x.bias", "no place for"),
])  # fmt: skip
def test_a_tensor_that_lacks_or_has_no_place_is_refused(name, old, new, message, tmp_path):
    path = written(tmp_path, name)
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    refused(message, gguf.unpacked, path)


def test_another_architecture_is_refused_by_name(tmp_path):
    path = tmp_path / "x.gguf"
    gguf_files.finish(package.GGUFWriter(path, "mamba"), path)
    refused("'mamba', and lutlab reads llama, qwen2, qwen3", outline_of, path)


def test_a_scale_that_is_none_is_refused_with_its_tensor(tmp_path):
    model = gguf_files.make("llama")
    model.model.layers[1].mlp.up_proj.weight.data[3, 4] = torch.nan
    path = gguf_files.write(tmp_path / "x.gguf", model)
    refused(r"blk\.1\.ffn_up\.weight holds NaN", gguf.unpacked, path)
