"""The quantized weights of GGUF files as they are: against the dense model of the same file, bit for bit."""

import pytest
import torch
from tests.base.refusals import refused
from tests.gguf import gguf_files
from tests.models.architectures import logits
from tests.models.folders import loaded
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab.checkpoint.foreign import gguf_packed
from lutlab.checkpoint.transformers import quantized_layers

# Between the models each type once, on rows that are permuted and on those that are not.
TYPES = {
    "llama": {"q_proj": "Q4_0", "k_proj": "Q5_1", "v_proj": "Q2_K", "o_proj": "Q1_0", "gate_proj": "Q3_K",
              "up_proj": "Q5_0", "down_proj": "TQ1_0", "embed_tokens": "Q8_0"},
    "llama-biases": {"q_proj": "Q6_K", "k_proj": "Q8_0", "v_proj": "Q5_K", "o_proj": "Q4_1", "gate_proj": "F16",
                     "up_proj": "TQ2_0", "down_proj": "Q4_K", "embed_tokens": "IQ4_NL", "lm_head": "Q6_K"},
    "qwen3": {"q_proj": "Q4_1", "k_proj": "Q4_K", "v_proj": "F32", "o_proj": "Q6_K", "gate_proj": "Q4_0",
              "up_proj": "Q4_0", "down_proj": "Q8_0", "embed_tokens": "F16", "lm_head": "F16"},
}  # fmt: skip


def write(path, name):
    return gguf_files.write(path, gguf_files.make(name), lambda n: TYPES[name][n.split(".")[-2]])


@pytest.mark.parametrize("name", TYPES)
def test_packed_weights_are_the_dense_ones(name, tmp_path):
    path = write(tmp_path / "x.gguf", name)
    dense, packed = loaded(path).model, lutlab.load(path)
    kinds = {n: TYPES[name][n.split(".")[-1]] for n, _ in dense.named_modules() if "proj" in n or n == "lm_head"
             if not (n == "lm_head" and dense.config.tie_word_embeddings)}  # fmt: skip
    layers = quantized_layers(packed)
    assert set(layers) == {n for n, kind in kinds.items() if kind not in ("F16", "F32")}
    for layer, module in layers.items():
        assert torch.equal(module.packed.dequantize(), dense.get_submodule(layer).weight), layer
    for parameter, value in packed.named_parameters():
        assert torch.equal(value, dense.get_parameter(parameter)), parameter
    ids = torch.tensor([[5, 9, 200, 31, 7, 7, 120]])
    torch.testing.assert_close(logits(packed, ids), logits(dense, ids), rtol=1e-4, atol=1e-3)


def test_a_stored_row_beside_a_quantized_one(command, tmp_path):
    row = ["model=folder", f"model.id={write(tmp_path / 'x.gguf', 'llama')}", "logger=none", "data.limit=1",
           "evaluate=[model_size,ppl:lambada-joined]"]  # fmt: skip
    assert command(*row, "method=stored").code == 0
    assert command(*row, "method=rtn", "q=4", "g=32").code == 0
    records = command.records().values()
    stored = [record for record in records if "stored_as" in record["facts"]]
    assert {(record["run"]["q"], record["run"]["g"]) for record in stored} == {(3.167, 32)}
    (sizes,) = (r["facts"]["stored_as"]["types"] for r in stored if "megabytes" in r["values"])
    assert sizes == {kind: 2 for name, kind in TYPES["llama"].items() if name != "embed_tokens"}
    assert len({tuple(record["values"].items()) for record in records}) == 6


@pytest.mark.parametrize(("q", "g", "options"), [
    (4, 32, {"method": "rtn", "symmetric": True}), (8, 32, {"method": "rtn", "symmetric": True}),
    (1, 128, {"method": "bcq"}),
])  # fmt: skip
def test_what_is_exported_is_read_again(q, g, options, tmp_path):
    ours = lutlab.quantize(gguf_files.make("llama"), q=q, g=g, **options)
    lutlab.export_gguf(ours, tmp_path / "x.gguf", byte_tokenizer())
    theirs = quantized_layers(lutlab.load(tmp_path / "x.gguf"))
    assert len(theirs) == 14
    for name, layer in quantized_layers(ours).items():
        assert torch.equal(layer.packed.unpack().codes, theirs[name].packed.unpack().codes), name
        assert torch.equal(layer.packed.dequantize(), theirs[name].packed.dequantize())


def test_types_without_steps_of_one_size_are_refused_by_name(tmp_path):
    model, message = gguf_files.make("llama"), "is of type IQ4_NL, whose values are not steps"
    path = gguf_files.write(tmp_path / "x.gguf", model, lambda n: "IQ4_NL")
    refused(rf"blk\.0\.attn_q\.weight {message}", lutlab.load, path)
    plain = gguf_files.write(tmp_path / "y.gguf", model, lambda n: "F16")
    refused("are not quantized: read it in full precision", gguf_packed.unpacked, plain)
