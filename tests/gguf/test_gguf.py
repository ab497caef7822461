"""GGUF files read dense: against transformers' own reader, and what their types hold against the package gguf."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from jinja2.exceptions import SecurityError
from tests.gguf import gguf_files
from tests.tiny_models import byte_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import gguf as package
from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelSpec
from lutlab.formats import pack
from lutlab.gguf import blocks as gguf_blocks
from lutlab.gguf import folder as gguf
from lutlab.gguf.config import outline_of
from lutlab.gguf.header import read_header, types
from lutlab.gguf.weights import as_stored
from lutlab.models.families import linear_layers
from lutlab.models.load import fingerprint, load_model, task_here
from lutlab.models.shape import linear_shapes, shape_of

TEXT = "the attack ate a hat  12 345, ünïcode\n\n7"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one than the kernels' own."""
    monkeypatch.setattr(gguf, "cache_folder", lambda name: tmp_path / "cache" / name)


def spec_of(path: Path) -> ModelSpec:
    return ModelSpec("tiny", "folder", str(path))


# ---- blocks ----


@pytest.mark.parametrize("scale", [0.02, 3e4, 2e-7])
@pytest.mark.parametrize("kind", gguf_blocks.TYPES)
def test_blocks_are_what_the_package_dequantizes(kind: str, scale: float) -> None:
    data = gguf_files.random_blocks(kind, 5, 512, scale / 4)
    found = gguf_blocks.unpacked(data, kind)
    assert torch.equal(pack(found).dequantize(), torch.from_numpy(expected(data, kind)))


def expected(data: np.ndarray, kind: str) -> np.ndarray:
    if kind not in ("Q1_0", "Q2_0"):
        return package.quants.dequantize(data, package.GGMLQuantizationType[kind])
    weights, bits = gguf_files.block(kind)[0], int(kind[1])  # which the package does not dequantize
    found = []
    for row in data.reshape(len(data), -1, 18):
        for one in row:
            (scale,) = struct.unpack("<e", one[:2].tobytes())
            word = int.from_bytes(one[2:].tobytes(), "little")
            codes = [(word >> (bits * i)) % 2**bits for i in range(weights)]
            found += [(2 * c - 1 if bits == 1 else c - 1) * scale for c in codes]
    return np.array(found, dtype=np.float32).reshape(len(data), -1)


# ---- models ----

TYPES = {
    "q_proj": "Q4_0", "k_proj": "Q8_0", "v_proj": "Q4_K", "o_proj": "Q4_1", "gate_proj": "Q6_K", "up_proj": "F16",
    "down_proj": "IQ4_NL", "lm_head": "Q6_K", "embed_tokens": "Q8_0",
}  # fmt: skip


IDS = torch.tensor([[5, 9, 200, 31, 7, 7, 120]])


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


@pytest.mark.parametrize("name", gguf_files.CONFIGS)
def test_a_model_is_the_one_that_was_written(name: str, tmp_path: Path) -> None:
    made = gguf_files.make(name)
    spec = spec_of(gguf_files.write(tmp_path / "x.gguf", made))
    found = load_model(spec, torch.float32, "cpu", 0)
    assert torch.equal(logits(found.model), logits(made))
    assert found.tokenizer(TEXT)["input_ids"] == byte_tokenizer()(TEXT)["input_ids"]
    assert found.tokenizer.chat_template
    assert shape_of(spec).parameters == sum(p.numel() for p in found.model.parameters())
    assert linear_shapes(spec) == {n: tuple(m.weight.shape) for n, m in linear_layers(found.model)}
    assert task_here(spec) == "causal_lm"
    assert fingerprint(spec).startswith("gguf:")


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_a_dense_model_is_the_one_that_transformers_reads(name: str, tmp_path: Path) -> None:
    """Which leaves out the biases of llama-biases."""
    made = gguf_files.make(name)
    path = gguf_files.write(tmp_path / "x.gguf", made, lambda n: TYPES[n.split(".")[-2]])
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32
    )
    found = load_model(spec_of(path), torch.float32, "cpu", 0)
    assert torch.equal(logits(found.model), logits(theirs))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    assert found.tokenizer(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]
    said, known = (
        json.loads((gguf.unpacked(path) / "config.json").read_text()),
        theirs.config.to_dict(),
    )
    alike = said.keys() - {"architectures", "head_dim"}  # which it leaves out of Qwen2's
    assert {key: known[key] for key in alike & known.keys()} == {
        key: said[key] for key in alike & known.keys()
    }


@pytest.mark.parametrize(("kind", "number"), [("Q1_0", 41), ("Q2_0", 42)])
def test_one_bit_and_two_bits_are_read_dense(kind: str, number: int, tmp_path: Path) -> None:
    """Types that the package does not dequantize; of Q2_0 it may not even know the number."""
    data = gguf_files.random_blocks(kind, 3, 256)
    entry = header(tensors=1, rest=tensor("a", (256, 3), number))
    path = tmp_path / "x.gguf"
    path.write_bytes(entry + bytes(-len(entry) % 32) + data.tobytes())
    found = as_stored(read_header(path), "a")
    assert torch.equal(found.float(), torch.from_numpy(expected(data, kind)))


def test_a_model_in_shards_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_files.write(tmp_path / "x.gguf", gguf_files.make("llama"))
    whole = gguf.unpacked(path)
    monkeypatch.setattr(gguf, "_SHARD_BYTES", 2**19)
    monkeypatch.setattr(gguf, "cache_folder", lambda name: tmp_path / "other" / name)
    shards = gguf.unpacked(path)
    assert len(list(shards.glob("model-*.safetensors"))) > 2
    first, second = (AutoModelForCausalLM.from_pretrained(f).state_dict() for f in (whole, shards))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_llama_3_rotates_by_the_factors_of_its_file(tmp_path: Path) -> None:
    model = gguf_files.make("llama")
    parameters = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    model.config.rope_parameters = parameters
    rotary = type(model.model.rotary_emb)(model.config)
    plain = 1 / 5e5 ** (torch.arange(0, 64, 2).float() / 64)
    model.register_buffer("rope_freqs", plain / rotary.inv_freq)
    write = gguf_files.add_tensor
    path = tmp_path / "x.gguf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            gguf_files,
            "add_tensor",
            lambda w, n, v, k: write(w, "rope_freqs.weight" if n.startswith("None") else n, v, k),
        )
        gguf_files.write(path, model)
        assert outline_of(path).config["rope_parameters"] == parameters
        model.rope_freqs[3] *= 1.5
        gguf_files.write(path, model)
    with pytest.raises(LutlabError, match=r"rope_freqs\.weight\) are not Llama 3's"):
        outline_of(path)


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        ("gpt-2", "a  12", ["a", "Ġ", "Ġ12"]),
        ("smollm", "a  12", ["a", "ĠĠ", "1", "2"]),
        ("llama-bpe", "12 345", ["12", "Ġ", "345"]),
        ("qwen2", "12", ["1", "2"]),
    ],
)
def test_text_is_cut_as_the_file_says(
    pre: str, text: str, tokens: list[str], tmp_path: Path
) -> None:
    path = gguf_files.write(tmp_path / "x.gguf", gguf_files.make("llama"), pre=pre)
    tokenizer = load_model(spec_of(path), torch.float32, "cpu", 0).tokenizer
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [piece for piece, _ in pieces] == tokens


def test_nothing_of_a_file_or_beside_it_runs(tmp_path: Path) -> None:
    """A template that would run a program is a text; what a folder's files ask for is that folder's, not the file's."""
    mark = tmp_path / "ran"
    template = f"{{{{ cycler.__init__.__globals__.os.system('touch {mark}') }}}}"
    path = gguf_files.write(tmp_path / "x.gguf", gguf_files.make("llama"), template=template)
    (tmp_path / "own.py").write_text(f"open({str(mark)!r}, 'w')\n")
    trap = {
        "auto_map": {"AutoTokenizer": ["own.T", None], "AutoConfig": "own.C"},
        "bos_token": "th",
    }
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(json.dumps(trap))
    found = load_model(spec_of(path), torch.float32, "cpu", 0).tokenizer
    assert (found.chat_template, found.bos_token) == (template, "<s>")
    with pytest.raises(SecurityError):  # where it is rendered, it is in transformers' sandbox
        found.apply_chat_template([{"role": "user", "content": "x"}])
    assert not mark.exists()


# ---- refused ----


def changed(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def header(*, version: int = 3, tensors: int = 0, keys: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def tensor(name: str, sizes: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return struct.pack("<Q", len(name)) + name.encode() + sizes + struct.pack("<IQ", kind, offset)


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
    "an unknown value": (header(keys=1, rest=key("a", 77, bytes(9))), "unknown type"),
    "a long text": (header(keys=1, rest=key("a", 8, struct.pack("<Q", BILLION))), "bytes long"),
    "a list of numbers": (
        header(keys=1, rest=key("a", 9, struct.pack("<IQ", 4, BILLION))),
        "announces 1000000000 elements",
    ),
    "a list of texts": (
        header(keys=1, rest=key("a", 9, struct.pack("<IQ", 8, BILLION))),
        "announces 1000000000 elements",
    ),
    "a list of lists": (
        header(keys=1, rest=key("a", 9, struct.pack("<IQ", 9, BILLION))),
        "elements of a type",
    ),
    "a text in a list": (
        header(keys=1, rest=key("a", 9, struct.pack("<IQQ", 8, 1, BILLION))),
        "bytes long",
    ),
    "a key twice": (header(keys=2, rest=key("a", 0, b"1") * 2 + bytes(9)), "the key 'a' twice"),
    "a tensor twice": (header(tensors=2, rest=tensor("a") * 2), "the tensor 'a' twice"),
    "many sizes": (header(tensors=1, rest=tensor("a", (32,) * 5)), "5 dimensions"),
    "no size": (header(tensors=1, rest=tensor("a", (0,))), r"sizes \[0\]"),
    "part of a block": (header(tensors=1, rest=tensor("a", (33,), 2)), "32 weights of a row"),
    "an unknown type": (
        header(tensors=1, rest=tensor("a", kind=99)),
        "type 99.*pip install -U gguf",
    ),
    "beyond the end": (header(tensors=1, rest=tensor("a", (2**62,) * 4)), "ends at byte"),
    "an offset beyond": (header(tensors=1, rest=tensor("a", offset=2**63)), "ends at byte"),
    "an odd offset": (header(tensors=1, rest=tensor("a", offset=3)), "multiple of 32"),
    "in one another": (
        header(tensors=2, rest=tensor("a") + tensor("b", offset=32) + bytes(500)),
        "inside of another",
    ),
    "an odd alignment": (
        header(keys=1, rest=key("general.alignment", 4, struct.pack("<I", 33))),
        "no power of two",
    ),
    "no architecture": (header(), "general.architecture.* is None"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_header_is_one_message(name: str, tmp_path: Path) -> None:
    content, message = DAMAGED[name]
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    types()  # imports the package, before memory is counted
    tracemalloc.start()
    with pytest.raises(LutlabError, match=rf"cannot read .*x\.gguf.*{message}"):
        outline_of(path)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"llama__expert_count": 8}, r"key llama\.expert_count \(8\)"),
        ({"llama__rope__scaling__type": "yarn"}, "rope.scaling.type"),
        ({"llama__new_thing": 1.5}, r"llama\.new_thing"),
        (
            {"llama__rope__dimension_count": 32, "llama__attention__key_length": 64},
            "of 64 numbers, 32 are rotated",
        ),
        ({"split__count": 3}, "one of 3 files of a model: join them"),
        ({"pre": "of-tomorrow"}, "'of-tomorrow', and lutlab cuts text as"),
        ({"tokenizer": False}, "its tokenizer .* is None"),
    ],
)
def test_what_is_not_read_is_refused(keys: dict, message: str, tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "x.gguf", gguf_files.make("llama"), **keys)
    with pytest.raises(LutlabError, match=message):
        gguf.unpacked(path)
    assert not list((tmp_path / "cache" / "gguf").glob("*"))


def test_a_tensor_that_lacks_or_has_no_place_is_refused(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "x.gguf", gguf_files.make("llama"))
    changed(path, b"blk.1.ffn_up.weight", b"blk.1.ffn_ux.weight")
    with pytest.raises(LutlabError, match=r"lacks the tensor blk\.1\.ffn_up\.weight"):
        gguf.unpacked(path)
    path = gguf_files.write(tmp_path / "y.gguf", gguf_files.make("llama-biases"))
    changed(path, b"blk.0.attn_q.bias", b"blk.0.attn_x.bias")
    with pytest.raises(LutlabError, match="no place for"):
        gguf.unpacked(path)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    writer = package.GGUFWriter(tmp_path / "x.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(LutlabError, match="'mamba', and lutlab reads llama, qwen2, qwen3"):
        outline_of(tmp_path / "x.gguf")


def test_a_scale_that_is_none_is_refused_with_its_tensor(tmp_path: Path) -> None:
    model = gguf_files.make("llama")
    model.model.layers[1].mlp.up_proj.weight.data[3, 4] = torch.nan
    path = gguf_files.write(tmp_path / "x.gguf", model)
    with pytest.raises(LutlabError, match=r"blk\.1\.ffn_up\.weight holds NaN"):
        gguf.unpacked(path)
