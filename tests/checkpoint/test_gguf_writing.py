"""GGUF files: read back by the package gguf and by transformers, their bytes by a decoder written out here, and run by
llama.cpp where that is installed.
"""

import struct

import numpy as np
import pytest
import torch
from tests.models.architectures import make, randomized
from tests.tiny_models import byte_tokenizer, word_tokenizer
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import gguf
import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.formats import pack
from lutlab.gguf.header import read_header
from lutlab.gguf.names import interleaved
from lutlab.gguf.packing import affine, exact, holding
from lutlab.gguf.tokenizer import ends_of
from lutlab.modules import QuantLinear

HEADS = {"q_proj": 4, "k_proj": 2}
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+"
)


def plain(**changed):
    """A LLaMA whose rows every type divides; q_proj has twice the heads of k_proj."""
    config = {
        "vocab_size": 264, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    torch.manual_seed(0)
    return randomized(LlamaForCausalLM(LlamaConfig(**config | changed)))


def quantized(**options):
    return lutlab.quantize(plain(), **options)


def tensors_of(path):
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def in_gguf(layer):
    """GGUF's name of a layer of a block."""
    parts = layer.split(".")
    names = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
    kind = names.get(parts[-1]) or "ffn_" + parts[-1].removesuffix("_proj")
    return f"blk.{parts[2]}.{kind}.weight"


def rows_in_gguf(layer, rows):
    heads = HEADS.get(layer.rpartition(".")[2])
    return rows if heads is None else interleaved(rows, heads)


def decoded(row, kind):
    """Codes as stored, d and m (None: the type has none) of each block of a row of bytes, by ggml-quants.c."""
    weights, size = {"q8_0": (32, 34), "q1_0": (128, 18), "q2_0": (64, 18)}.get(
        kind, (32, {"q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24}.get(kind))
    )
    codes, scales = [], []
    for block in np.asarray(row).reshape(-1, size):
        data = bytes(block)
        scale, data = struct.unpack("<e", data[:2])[0], data[2:]
        offset = None
        if kind.endswith("_1"):
            offset, data = struct.unpack("<e", data[:2])[0], data[2:]
        scales.append((scale, offset))
        high = 0
        if kind.startswith("q5"):
            high, data = int.from_bytes(data[:4], "little"), data[4:]
        for j in range(weights):
            if kind == "q8_0":
                codes.append(struct.unpack("b", data[j : j + 1])[0])
            elif kind == "q2_0":
                codes.append(data[j // 4] >> 2 * (j % 4) & 3)
            elif kind == "q1_0":
                codes.append(data[j // 8] >> (j % 8) & 1)
            else:
                low = data[j % 16] >> 4 * (j // 16) & 15
                codes.append(low | (high >> j & 1) << 4)
    return codes, scales


@pytest.mark.parametrize(
    ("options", "kind", "zero"),
    [
        ({"method": "rtn", "q": 4, "g": 32, "symmetric": True}, "Q4_0", 0),
        ({"method": "gptq", "q": 4, "g": -1, "symmetric": True}, "Q4_0", 0),
        ({"method": "rtn", "q": 5, "g": 64, "symmetric": True}, "Q5_0", 0),
        ({"method": "rtn", "q": 8, "g": 128, "symmetric": True}, "Q8_0", 128),
        ({"method": "rtn", "q": 4, "g": 32}, "Q4_1", 0),
        ({"method": "rtn", "q": 5, "g": 96}, "Q5_1", 0),
    ],
)
def test_codes_and_scales_are_the_layers_own(options, kind, zero, tmp_path):
    """Every byte; of the types with an offset, this is -scale * zero_point, rounded to float16."""
    if options["method"] == "gptq":
        options["calibration"] = torch.arange(64).view(2, 32)
    model = quantized(**options)
    lutlab.export_gguf(model, tmp_path / "model.gguf")
    found = tensors_of(tmp_path / "model.gguf")
    for name, layer in quantized_layers(model).items():
        tensor, stored = layer.packed.unpack(), found[in_gguf(name)]
        assert stored.tensor_type.name == kind
        group = torch.arange(tensor.codes.shape[1]) // (
            tensor.codes.shape[1] if options["g"] == -1 else options["g"]
        )
        codes, scale, zeros = (
            rows_in_gguf(name, one)
            for one in (tensor.codes.int(), tensor.scale[:, group], tensor.zero_point[:, group])
        )
        offset = (-scale.double() * zeros).half()
        for row in (0, 1, 5, len(codes) - 1):
            got, blocks = decoded(stored.data[row], kind.lower())
            assert got == (codes[row] - zero).tolist()
            assert [d for d, _ in blocks] == scale[row, ::32].tolist()
            if kind.endswith("_1"):
                assert [m for _, m in blocks] == offset[row, ::32].tolist()
        if not kind.endswith("_1"):
            theirs = gguf.quants.dequantize(stored.data, stored.tensor_type)
            ours = rows_in_gguf(name, layer.packed.dequantize())
            assert torch.equal(torch.from_numpy(theirs), ours)


@pytest.mark.parametrize(("q", "kind"), [(2, "Q4_0"), (3, "Q4_0"), (4, "Q5_0"), (7, "Q8_0")])
def test_wider_types_hold_asymmetric_codes_exactly(q, kind, tmp_path, caplog):
    """transformers, which reads the file by its own code, computes the same logits."""
    model = quantized(method="rtn", q=q, g=64)
    lutlab.export_gguf(model, tmp_path / "model.gguf", byte_tokenizer(), wider=True)
    assert caplog.records == []
    assert tensors_of(tmp_path / "model.gguf")["blk.0.attn_q.weight"].tensor_type.name == kind
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32
    )
    for name, layer in quantized_layers(model).items():
        assert torch.equal(theirs.get_submodule(name).weight, layer.packed.dequantize()), name
    ids = torch.arange(40)[None]
    assert torch.allclose(theirs(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


def test_rounded_offsets_are_said(tmp_path, caplog):
    model = quantized(method="rtn", q=4, g=32)
    lutlab.export_gguf(model, tmp_path / "model.gguf", byte_tokenizer())
    (said,) = (record.getMessage() for record in caplog.records)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32
    )
    most = max(
        float((theirs.get_submodule(name).weight.data - layer.packed.dequantize()).abs().max())
        for name, layer in quantized_layers(model).items()
    )
    assert 0 < most < 0.01
    assert "14 layers have asymmetric codes" in said
    assert f"by at most {most:.2g}" in said


def one_bit(rows=3, columns=256):
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 2, (rows, columns), generator=generator, dtype=torch.uint8)
    alpha = torch.rand(1, rows, columns // 128, generator=generator).half()
    return BCQTensor(codes, alpha, None, 1, 128)


def two_bits(zero, rows=3, columns=256):
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 4, (rows, columns), generator=generator, dtype=torch.uint8)
    scale = torch.rand(rows, columns // 64, generator=generator).half()
    return UniformTensor(codes, scale, torch.full(scale.shape, zero, dtype=torch.int16), 2, 64)


@pytest.mark.parametrize(
    ("tensor", "kind", "block"),
    [(one_bit(), "q1_0", 128), (two_bits(1), "q2_0", 64), (two_bits(2), "q2_0", 64)],
)
def test_types_of_one_and_two_bits(tensor, kind, block):
    """gguf 0.19 does not dequantize them: by the formulas of ggml-quants.c."""
    weight = affine(tensor)
    found = exact(weight, holding(weight)[0])
    assert found.type == kind
    for row, expected in zip(found.values, pack(tensor).dequantize(), strict=True):
        codes, scales = decoded(row, kind)
        levels = np.array(codes) * 2 - 1 if kind == "q1_0" else np.array(codes) - 1
        values = levels.reshape(-1, block) * np.array([[d] for d, _ in scales])
        assert values.reshape(-1).tolist() == expected.tolist()


def test_a_type_that_the_package_has_no_name_for_is_written(tmp_path):
    """Q2_0, number 42: the record of a tensor is its name, dimensions, sizes (K first) and type."""
    model = quantized(method="rtn", q=2, g=64, symmetric=True)
    lutlab.export_gguf(model, tmp_path / "model.gguf")
    data = (tmp_path / "model.gguf").read_bytes()
    name = b"blk.1.ffn_down.weight"
    record = struct.pack("<Q", len(name)) + name + struct.pack("<IQQI", 2, 256, 128, 42)
    assert data.count(record) == 1
    weight = affine(model.model.layers[1].mlp.down_proj.packed.unpack())
    assert data.count(exact(weight, holding(weight)[0]).values.tobytes()) == 1


def test_float_offsets_go_where_they_are_from(tmp_path):
    """Codes of Q4_1 with an offset that is no multiple of the scale: written as they are."""
    model = quantized(method="rtn", q=4, g=32)
    layer = model.model.layers[0].mlp.down_proj
    tensor = layer.packed.unpack()
    offset = torch.rand(tensor.scale.shape, generator=torch.Generator().manual_seed(0)).half()
    moved = UniformTensor(tensor.codes, tensor.scale, None, 4, 32, offset=offset)
    model.model.layers[0].mlp.down_proj = QuantLinear(pack(moved), None)
    lutlab.export_gguf(model, tmp_path / "model.gguf")
    stored = tensors_of(tmp_path / "model.gguf")["blk.0.ffn_down.weight"]
    theirs = torch.from_numpy(gguf.quants.dequantize(stored.data, stored.tensor_type))
    assert stored.tensor_type.name == "Q4_1"
    assert torch.equal(theirs, pack(moved).dequantize())


def test_what_is_not_quantized_is_exact(tmp_path):
    model = plain(tie_word_embeddings=True)
    weights = model.get_input_embeddings().weight.data
    weights.copy_(weights.half())
    lutlab.quantize(model, method="rtn", q=4, g=32, skip=["*.down_proj"])
    model.model.layers[0].mlp.down_proj.weight.data[3, 5] = 1 / 3
    lutlab.export_gguf(model, tmp_path / "model.gguf")
    found = tensors_of(tmp_path / "model.gguf")
    assert "output.weight" not in found
    embeddings, down, norm = (
        found[name] for name in ("token_embd.weight", "blk.0.ffn_down.weight", "output_norm.weight")
    )
    assert [one.tensor_type.name for one in (embeddings, down, norm)] == ["F16", "F32", "F32"]
    assert torch.equal(torch.tensor(embeddings.data).float(), weights)
    assert torch.equal(torch.tensor(down.data), model.model.layers[0].mlp.down_proj.weight.data)


@pytest.mark.parametrize(
    ("options", "wider", "message"),
    [
        ({"q": 3, "g": 32}, False, r"self_attn\.q_proj: q=3 g=32 .* no type of 3 bits\. Q4_0 holds"),
        ({"q": 2, "g": 64}, False, r"Q2_0 has no room for weights of -2 to 2 scales\. Q4_0 holds"),
        ({"q": 4, "g": 48}, False, r"Q4_0 has one scale for 32 neighbours, .* multiple of 32"),
        ({"q": 8, "g": 32}, True, r"Q8_0 has no room .* at q=8 with symmetric=true"),
        ({"q": 4, "g": 32, "scale_dtype": "fp32"}, True, "scales are torch.float32.* scale_dtype=fp16"),
    ],
)  # fmt: skip
def test_what_has_no_type_is_refused_by_name(options, wider, message, tmp_path):
    model = quantized(method="rtn", **options)
    with pytest.raises(LutlabError, match=message):
        lutlab.export_gguf(model, tmp_path / "model.gguf", wider=wider)
    assert list(tmp_path.iterdir()) == []


def test_other_layers_and_models_are_refused(tmp_path):
    path = tmp_path / "model.gguf"
    with pytest.raises(LutlabError, match=r"codes are not uniform .* lutlab\.save"):
        lutlab.export_gguf(quantized(method="bcq", q=2, g=32), path)
    model = quantized(method="rtn", q=4, g=32)
    layer = model.model.layers[0].mlp.down_proj
    order = torch.arange(256).flip(0).int()
    tensor = layer.packed.unpack()
    reordered = UniformTensor(tensor.codes, tensor.scale, tensor.zero_point, 4, 32, order)
    model.model.layers[0].mlp.down_proj = QuantLinear(pack(reordered), None)
    with pytest.raises(LutlabError, match=r"down_proj: its groups are of reordered channels"):
        lutlab.export_gguf(model, path)
    with pytest.raises(LutlabError, match="of type 'opt'"):
        lutlab.export_gguf(make("opt"), path)
    with pytest.raises(LutlabError, match=r"has the bias model.*q_proj\.bias, and GGUF files"):
        lutlab.export_gguf(plain(attention_bias=True), path)
    path.write_text("here")
    with pytest.raises(LutlabError, match="overwrites no model"):
        lutlab.export_gguf(plain(), path)


# ---- the tokenizer ----


def tokenizer(steps="gpt-2", bos=True):
    """Bytes, three merges, a special token and one that is a word of its own."""
    found = byte_tokenizer(bos)
    digits, whole = (
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    )
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
    found.backend_tokenizer.pre_tokenizer = {
        "gpt-2": whole,
        "smollm": pre_tokenizers.Sequence([digits, whole]),
        "llama-bpe": pre_tokenizers.Sequence([split, bytes_alone]),
    }[steps]
    found.backend_tokenizer.model.ignore_merges = steps == "llama-bpe"
    found.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    found.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    found.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return found


def test_the_vocabulary_is_the_tokenizers(tmp_path):
    ours = tokenizer("smollm")
    lutlab.export_gguf(plain(), tmp_path / "model.gguf", ours)
    keys = {
        name.removeprefix("tokenizer."): field.contents()
        for name, field in gguf.GGUFReader(tmp_path / "model.gguf").fields.items()
    }
    assert (keys["ggml.model"], keys["ggml.pre"]) == ("gpt2", "smollm")
    tokens, kinds = keys["ggml.tokens"], keys["ggml.token_type"]
    assert tokens[:260] == ours.convert_ids_to_tokens(range(260))
    assert tokens[260:] == ["<|im_end|>", "<tool>", "[PAD262]", "[PAD263]"]
    assert [kinds[0], *kinds[258:]] == [3, 1, 1, 3, 4, 5, 5]  # control, normal, own word, unused
    assert keys["ggml.merges"] == ["t h", "Ġ a", "Ġ e"]
    assert (keys["ggml.bos_token_id"], keys["ggml.eos_token_id"]) == (0, 0)
    assert (keys["ggml.add_bos_token"], keys["ggml.add_eos_token"]) == (True, False)
    assert keys["chat_template"] == ours.chat_template
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    text = "the end of a day <tool>"
    assert theirs(text, add_special_tokens=False).input_ids == ours(text).input_ids[1:]


def ending_twice(found):
    found.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "$A <s> <s>", special_tokens=[("<s>", 0)]
    )


def normalizing(found):
    found.backend_tokenizer.normalizer = normalizers.NFC()


def by_words(found):
    found.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()


def larger(found):
    found.add_tokens([f"word{i}" for i in range(9)])


def endless(found):
    found.eos_token = None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (ending_twice, "adds other tokens"),
        (normalizing, "normalizes text"),
        (by_words, "splits text by .*Whitespace"),
        (larger, "token of id 270, and the model 264"),
        (endless, "no eos_token"),
    ],
)
def test_a_tokenizer_that_gguf_cannot_say_is_refused(change, message, tmp_path):
    ours = tokenizer()
    change(ours)
    with pytest.raises(LutlabError, match=f"{message}.*tokenizer=None"):
        lutlab.export_gguf(plain(), tmp_path / "model.gguf", ours)
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_of_another_kind_is_refused(tmp_path):
    with pytest.raises(LutlabError, match="is WordLevel, and byte-level BPE"):
        lutlab.export_gguf(plain(), tmp_path / "model.gguf", word_tokenizer())


# ---- llama.cpp ----


@pytest.mark.parametrize("steps", ["gpt-2", "smollm", "llama-bpe"])
@pytest.mark.parametrize("bos", [True, False])
def test_llama_cpp_cuts_text_as_the_tokenizer_does(steps, bos, tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    ours = tokenizer(steps, bos)
    lutlab.export_gguf(plain(), tmp_path / "model.gguf", ours)
    theirs = llama_cpp.Llama(str(tmp_path / "model.gguf"), vocab_only=True, verbose=False)
    for text in (
        "the end, a  the\n\n then 1234 and 12 e3", "I'LL don't é日本 🚀\t x", "<tool> the<|im_end|> a", " ", "\r\n a",
    ):  # fmt: skip
        got = theirs.tokenize(text.encode(), add_bos=True, special=True)
        assert got == ours(text).input_ids, text
    theirs.close()


@pytest.mark.parametrize(
    ("options", "wider"),
    [
        ({"method": "rtn", "q": 4, "g": 32, "symmetric": True}, False),
        ({"method": "rtn", "q": 4, "g": 32}, False),
        ({"method": "rtn", "q": 5, "g": 64}, False),
        ({"method": "rtn", "q": 3, "g": 64}, True),
        ({"method": "rtn", "q": 8, "g": 128, "symmetric": True}, False),
        ({"method": "rtn", "q": 2, "g": 64, "symmetric": True}, False),
        ({"method": "bcq", "q": 1, "g": 128}, False),
    ],
)
def test_llama_cpp_computes_the_same_model(options, wider, tmp_path):
    """Its activations have 8 bits: logits differ by some percent, and by far more where two rows change places."""
    pytest.importorskip("llama_cpp")
    from lutlab.peers.llama_cpp.gguf_model import Decoder

    model = quantized(**options)
    lutlab.export_gguf(model, tmp_path / "model.gguf", wider=wider)
    ids = [7, 3, 200, 41, 5, 99]
    with Decoder(tmp_path / "model.gguf", 64, 1) as decoder:
        decoder.rewind()
        theirs = np.stack([decoder.step(token).copy() for token in ids])
    ours = model(torch.tensor([ids])).logits[0].detach().numpy()
    assert np.linalg.norm(theirs - ours) < 0.08 * np.linalg.norm(ours)


def test_a_file_names_the_ends_that_llama_cpp_does_not_know(tmp_path):
    model, tokenizer = quantized(method="rtn", q=4, g=32, symmetric=True), byte_tokenizer()
    tokenizer.add_tokens(["<|im_end|>"], special_tokens=True)  # which it knows by its text
    model.generation_config.eos_token_id = [0, 5, 6, 260]
    lutlab.export_gguf(model, tmp_path / "x.gguf", tokenizer)
    assert ends_of(read_header(tmp_path / "x.gguf")) == [0, 5, 6, 260]
    model.generation_config.eos_token_id = [0, 5, 6, 7]
    with pytest.raises(LutlabError, match="end a text at 4 tokens, of which GGUF names 3"):
        lutlab.export_gguf(model, tmp_path / "y.gguf", tokenizer)
