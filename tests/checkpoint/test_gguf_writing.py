"""GGUF files: read back by the package gguf and by transformers, their bytes by a decoder of our own, and run by
llama.cpp where that is installed.
"""

import struct

import numpy as np
import pytest
import torch
from tests.base.refusals import refused
from tests.checkpoint.readers import change_layer, wide
from tests.gguf.gguf_files import decoded, dequantized, permuted
from tests.models.architectures import logits
from tests.tiny_models import byte_tokenizer, word_tokenizer
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer

import gguf
import lutlab
from lutlab.base.groups import expand
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.formats import pack
from lutlab.gguf.header import read_header
from lutlab.gguf.packing import affine, exact, holding
from lutlab.gguf.tokenizer import ends_of

NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+"
)
SYMMETRIC = {"method": "rtn", "q": 4, "g": 32, "symmetric": True}
FILE = "model.gguf"


def quantized(**options):
    return lutlab.quantize(wide(), **{"method": "rtn", "q": 4, "g": 32} | options)


def exported(model, folder, tokenizer=None, **options):
    """Tensors of the file, by their name there."""
    lutlab.export_gguf(model, folder / FILE, tokenizer, **options)
    return {tensor.name: tensor for tensor in gguf.GGUFReader(folder / FILE).tensors}


def theirs_of(folder):
    return AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)


def rows_in_gguf(layer, rows):
    heads = {"q_proj": 4, "k_proj": 2}.get(layer.rpartition(".")[2])
    return rows if heads is None else permuted(rows, heads)


def dense(stored):
    return torch.from_numpy(gguf.quants.dequantize(stored.data, stored.tensor_type))


@pytest.mark.parametrize(("options", "kind", "zero"), [
    (SYMMETRIC, "Q4_0", 0),
    (SYMMETRIC | {"method": "gptq", "g": -1, "calibration": torch.arange(64).view(2, 32)}, "Q4_0", 0),
    (SYMMETRIC | {"q": 5, "g": 64}, "Q5_0", 0),
    (SYMMETRIC | {"q": 8, "g": 128}, "Q8_0", 128),
    ({}, "Q4_1", 0),
    ({"q": 5, "g": 96}, "Q5_1", 0),
])  # fmt: skip
def test_codes_and_scales_are_the_layers_own(options, kind, zero, tmp_path):
    """Every byte; of the types with an offset, this is -scale * zero_point, rounded to float16."""
    model = quantized(**options)
    stored_as = exported(model, tmp_path)
    for name, layer in quantized_layers(model).items():
        tensor, stored = layer.packed.unpack(), stored_as[NAMES.get_name(name) + ".weight"]
        assert stored.tensor_type.name == kind
        parts = (tensor.scale, -tensor.scale.double() * tensor.zero_point)
        spread = (expand(part, tensor.group_size, layer.in_features).half() for part in parts)
        codes, scale, offset = (rows_in_gguf(name, x) for x in (tensor.codes.int(), *spread))
        for row in (0, 1, 5, len(codes) - 1):
            values, blocks = decoded(stored.data[row], kind)
            assert values == (codes[row] - zero).tolist()
            expected = (scale, offset) if kind.endswith("_1") else (scale,)
            expected = torch.stack([x[row, ::32].float() for x in expected])
            assert torch.equal(torch.tensor(blocks).T, expected)
        if not kind.endswith("_1"):
            assert torch.equal(dense(stored), rows_in_gguf(name, layer.packed.dequantize()))


@pytest.mark.parametrize(("q", "kind"), [(2, "Q4_0"), (3, "Q4_0"), (4, "Q5_0"), (7, "Q8_0")])
def test_wider_types_hold_asymmetric_codes_exactly(q, kind, tmp_path, caplog):
    """transformers, which reads the file by its own code, computes the same logits."""
    model, ids = quantized(q=q, g=64), torch.arange(40)[None]
    tensors = exported(model, tmp_path, byte_tokenizer(), wider=True)
    assert caplog.records == []
    assert tensors["blk.0.attn_q.weight"].tensor_type.name == kind
    theirs = theirs_of(tmp_path)
    for name, layer in quantized_layers(model).items():
        assert torch.equal(theirs.get_submodule(name).weight, layer.packed.dequantize()), name
    assert torch.allclose(logits(theirs, ids), logits(model, ids), rtol=1e-4, atol=1e-4)


def test_rounded_offsets_are_said(tmp_path, caplog):
    model = quantized()
    exported(model, tmp_path, byte_tokenizer())
    (message,) = caplog.messages
    theirs = theirs_of(tmp_path)
    pairs = ((layer, theirs.get_submodule(n)) for n, layer in quantized_layers(model).items())
    most = max((b.weight - a.packed.dequantize()).abs().max().item() for a, b in pairs)
    assert 0 < most < 0.01
    assert "14 layers have asymmetric codes" in message
    assert f"by at most {most:.2g}" in message


def low_bits(bits, g, zero=None):
    """[3, 256] of binary codes; with a zero point: of uniform ones."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 2**bits, (3, 256), generator=generator, dtype=torch.uint8)
    scale = torch.rand(3, 256 // g, generator=generator).half()
    if zero is None:
        return BCQTensor(codes, scale[None], None, bits, g)
    return UniformTensor(codes, scale, torch.full_like(scale, zero, dtype=torch.int16), bits, g)


@pytest.mark.parametrize("tensor", [low_bits(1, 128), low_bits(2, 64, 1), low_bits(2, 64, 2)])
def test_types_of_one_and_two_bits(tensor):
    kind = f"Q{tensor.bits}_0"
    weight = affine(tensor)
    data = exact(weight, holding(weight)[0])
    assert data.type == kind.lower()
    assert dequantized(data.values, kind).tolist() == pack(tensor).dequantize().tolist()


def test_a_type_that_the_package_has_no_name_for_is_written(tmp_path):
    """Q2_0, number 42: the record of a tensor is its name, dimensions, sizes (K first) and type."""
    model = quantized(**SYMMETRIC | {"q": 2, "g": 64})
    lutlab.export_gguf(model, tmp_path / FILE)
    data, name = (tmp_path / FILE).read_bytes(), b"blk.1.ffn_down.weight"
    record = struct.pack("<Q", len(name)) + name + struct.pack("<IQQI", 2, 256, 128, 42)
    assert data.count(record) == 1
    weight = affine(model.model.layers[1].mlp.down_proj.packed.unpack())
    assert data.count(exact(weight, holding(weight)[0]).values.tobytes()) == 1


def test_float_offsets_go_where_they_are_from(tmp_path):
    """Codes of Q4_1 with an offset that is no multiple of the scale: written as they are."""
    model, name = quantized(), "model.layers.0.mlp.down_proj"
    tensor = model.get_submodule(name).packed.unpack()
    offset = torch.rand(tensor.scale.shape, generator=torch.Generator().manual_seed(0)).half()
    change_layer(model, name, zero_point=None, offset=offset)
    stored = exported(model, tmp_path)["blk.0.ffn_down.weight"]
    assert stored.tensor_type.name == "Q4_1"
    assert torch.equal(dense(stored), model.get_submodule(name).packed.dequantize())


def test_what_is_not_quantized_is_exact(tmp_path):
    model = wide(tie_word_embeddings=True)
    weights = model.get_input_embeddings().weight.data
    weights.copy_(weights.half())
    lutlab.quantize(model, method="rtn", q=4, g=32, skip=["*.down_proj"])
    down = model.model.layers[0].mlp.down_proj.weight.data
    down[3, 5] = 1 / 3
    tensors = exported(model, tmp_path)
    assert "output.weight" not in tensors
    names = {"token_embd": "F16", "blk.0.ffn_down": "F32", "output_norm": "F32"}
    assert {name: tensors[f"{name}.weight"].tensor_type.name for name in names} == names
    assert torch.equal(torch.tensor(tensors["token_embd.weight"].data).float(), weights)
    assert torch.equal(torch.tensor(tensors["blk.0.ffn_down.weight"].data), down)


def tokenizer(steps="gpt-2", bos=True):
    """Bytes, three merges, a special token and one that is a word of its own."""
    made = byte_tokenizer(bos)
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False)
    parts = {
        "gpt-2": [whole], "smollm": [pre_tokenizers.Digits(individual_digits=True), whole],
        "llama-bpe": [pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
                      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)],
    }[steps]  # fmt: skip
    made.backend_tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence(parts) if len(parts) > 1 else whole
    )
    made.backend_tokenizer.model.ignore_merges = steps == "llama-bpe"
    made.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    made.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    made.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return made


def test_the_vocabulary_is_the_tokenizers(tmp_path):
    ours = tokenizer("smollm")
    exported(wide(), tmp_path, ours)
    fields = gguf.GGUFReader(tmp_path / FILE).fields
    keys = {name.removeprefix("tokenizer."): field.contents() for name, field in fields.items()}
    assert (keys["ggml.model"], keys["ggml.pre"]) == ("gpt2", "smollm")
    tokens, kinds = keys["ggml.tokens"], keys["ggml.token_type"]
    assert tokens[:260] == ours.convert_ids_to_tokens(range(260))
    assert tokens[260:] == ["<|im_end|>", "<tool>", "[PAD262]", "[PAD263]"]
    assert [kinds[0], *kinds[258:]] == [3, 1, 1, 3, 4, 5, 5]  # control, normal, own word, unused
    assert keys["ggml.merges"] == ["t h", "Ġ a", "Ġ e"]
    assert (keys["ggml.bos_token_id"], keys["ggml.eos_token_id"]) == (0, 0)
    assert (keys["ggml.add_bos_token"], keys["ggml.add_eos_token"]) == (True, False)
    assert keys["chat_template"] == ours.chat_template
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=FILE)
    text = "the end of a day <tool>"
    assert theirs(text, add_special_tokens=False).input_ids == ours(text).input_ids[1:]


ENDING_TWICE = processors.TemplateProcessing("$A <s> <s>", special_tokens=[("<s>", 0)])


@pytest.mark.parametrize(("change", "message"), [
    (lambda made: setattr(made.backend_tokenizer, "post_processor", ENDING_TWICE), "adds other tokens"),
    (lambda made: setattr(made.backend_tokenizer, "normalizer", normalizers.NFC()), "normalizes text"),
    (lambda made: setattr(made.backend_tokenizer, "pre_tokenizer", pre_tokenizers.Whitespace()), "by .*Whitespace"),
    (lambda made: made.add_tokens([f"word{i}" for i in range(9)]), "token of id 270, and the model 264"),
    (lambda made: setattr(made, "eos_token", None), "no eos_token"),
])  # fmt: skip
def test_a_tokenizer_that_gguf_cannot_say_is_refused(change, message, tmp_path):
    ours = tokenizer()
    change(ours)
    refused(f"{message}.*tokenizer=None", lutlab.export_gguf, wide(), tmp_path / FILE, ours)
    refused("is WordLevel, and", lutlab.export_gguf, wide(), tmp_path / FILE, word_tokenizer())
    assert list(tmp_path.iterdir()) == []


def test_a_file_names_the_ends_that_llama_cpp_does_not_know(tmp_path):
    model, ours = quantized(symmetric=True), byte_tokenizer()
    ours.add_tokens(["<|im_end|>"], special_tokens=True)  # which it knows by its text
    model.generation_config.eos_token_id = [0, 5, 6, 260]
    lutlab.export_gguf(model, tmp_path / FILE, ours)
    assert ends_of(read_header(tmp_path / FILE)) == [0, 5, 6, 260]
    model.generation_config.eos_token_id = [0, 5, 6, 7]
    refused("at 4 tokens, of which GGUF names 3", lutlab.export_gguf, model, tmp_path / "y", ours)


@pytest.mark.parametrize("steps", ["gpt-2", "smollm", "llama-bpe"])
@pytest.mark.parametrize("bos", [True, False])
def test_llama_cpp_cuts_text_as_the_tokenizer_does(steps, bos, tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    ours = tokenizer(steps, bos)
    exported(wide(), tmp_path, ours)
    theirs = llama_cpp.Llama(str(tmp_path / FILE), vocab_only=True, verbose=False)
    for text in (
        "the end, a  the\n\n then 1234 and 12 e3", "I'LL don't é日本 🚀\t x", "<tool> the<|im_end|> a", " ", "\r\n a",
    ):  # fmt: skip
        ids = theirs.tokenize(text.encode(), add_bos=True, special=True)
        assert ids == ours(text).input_ids, text
    theirs.close()


@pytest.mark.parametrize(("options", "wider"), [
    (SYMMETRIC, False), ({}, False), ({"q": 5, "g": 64}, False), ({"q": 3, "g": 64}, True),
    (SYMMETRIC | {"q": 8, "g": 128}, False), (SYMMETRIC | {"q": 2, "g": 64}, False),
    ({"method": "bcq", "q": 1, "g": 128}, False),
])  # fmt: skip
def test_llama_cpp_computes_the_same_model(options, wider, tmp_path):
    """Its activations have 8 bits: logits differ by some percent, and by far more where two rows change places."""
    pytest.importorskip("llama_cpp")
    from lutlab.peers.llama_cpp.gguf_model import Decoder

    model, ids = quantized(**options), [7, 3, 200, 41, 5, 99]
    exported(model, tmp_path, wider=wider)
    with Decoder(tmp_path / FILE, 64, 1) as decoder:
        decoder.rewind()
        theirs = np.stack([decoder.step(token).copy() for token in ids])
    ours = logits(model, torch.tensor([ids]))[0].numpy()
    assert np.linalg.norm(theirs - ours) < 0.08 * np.linalg.norm(ours)
