"""The peer's column: not run, and why, where it is absent; the GGUF it is given; its decoding where it is there."""

import argparse
import copy
import importlib.util
import typing
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.base.refusals import refused
from tests.evaluators.items import subject
from tests.tiny_models import tiny_llama, tiny_opt
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import lutlab
from lutlab.base.specs import ModelRun, ModelSpec
from lutlab.evaluators import llama_cpp
from lutlab.evaluators.kld import token_kl
from lutlab.evaluators.llama_cpp import LlamaCpp
from lutlab.gguf import file as gguf_file
from lutlab.gguf.file import Encoded
from lutlab.gguf.names import interleaved
from lutlab.models.load import load_model
from lutlab.peers.llama_cpp import gguf_model


def wide(inner):
    """A LLaMA of 2 layers whose inputs are of 256 and `inner` channels."""
    config = LlamaConfig(
        vocab_size=300, hidden_size=256, intermediate_size=inner, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, initializer_range=0.05,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def test_without_the_peer_the_cell_is_not_run(command, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    outcome = command("+exp=qigen/fig4", "rows=[llama-7b/g64]", "mode=plan", "logger=none")
    assert outcome.code == 0, outcome.err
    assert "not run: llama_cpp and gguf not installed: pip install" in outcome.out
    refused("pip install llama-cpp-python gguf", LlamaCpp().measure, subject(tiny_llama()))


def test_every_weight_has_its_name_dequantized_unless_the_type_holds_its_codes():
    model = lutlab.quantize(tiny_llama(), method="rtn", q=4, g=16)
    tensors = dict(gguf_model.tensors(model))
    assert len(tensors) == 3 + 2 * 9
    down = model.model.layers[1].mlp.down_proj
    assert torch.equal(tensors["blk.1.ffn_down.weight"], down.packed.dequantize())
    total = sum(parameter.numel() for parameter in tiny_llama().parameters())
    assert sum(tensor.numel() for tensor in tensors.values()) == total
    model = lutlab.quantize(tiny_llama(), method="rtn", q=4, g=32, symmetric=True)
    encoded = gguf_model.encode(model, "q4_0", "f16", threads=1)  # ggml's quantizer is not called
    quantized = {name: w for name, w in gguf_model.tensors(model) if encoded[name].type == "q4_0"}
    assert len(quantized) == 2 * 7
    assert all(torch.equal(gguf_model.rounded(encoded[n]), w) for n, w in quantized.items())


def test_rows_of_q_are_in_the_order_that_llama_cpp_rotates():
    """Rotating neighbours after the reordering equals transformers' rotation of halves before it."""
    heads, width = 2, 8
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(heads * width, 16, generator=generator)
    x = torch.randn(16, generator=generator)
    angle = torch.rand(width // 2, generator=generator)
    cos, sin = angle.cos(), angle.sin()
    q = (weight @ x).view(1, heads, 1, width)
    theirs, _ = apply_rotary_pos_emb(q, q, *(x.repeat(2)[None, None] for x in (cos, sin)))
    reordered = interleaved(weight, heads)
    even, odd = (reordered @ x).view(heads, width // 2, 2).unbind(-1)
    halves = torch.cat((even * cos - odd * sin, even * sin + odd * cos), dim=1)
    assert torch.allclose(halves, theirs.view(heads, width), atol=1e-6)
    assert torch.equal(gguf_model.rounded(Encoded(reordered.numpy(), "f32"), heads), weight)


def test_the_file_holds_the_weights_and_the_numbers(tmp_path):
    gguf = pytest.importorskip("gguf")
    model = tiny_llama()
    encoded = gguf_model.encode(model, "f32", "f16", threads=1)
    gguf_file.write(model.config, encoded, tmp_path / "model.gguf")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    written = {tensor.name: torch.tensor(tensor.data) for tensor in reader.tensors}
    for name, values in gguf_model.tensors(model):
        kept = values.half() if name == "output.weight" else values
        assert torch.equal(written[name].view(values.shape), kept), name
    assert reader.fields["llama.attention.head_count_kv"].contents() == 1
    assert reader.fields["llama.vocab_size"].contents() == 260


def test_the_width_of_a_row_names_a_type_and_what_a_type_cannot_hold_is_refused():
    assert typing.get_args(llama_cpp.Type) == tuple(gguf_model.BITS)
    types = {1: "q2_K", 2: "q2_K", 2.5: "q3_K", 3: "q3_K", 4: "q4_0", 8: "q8_0"}
    assert {q: gguf_model.type_for(q) for q in types} == types
    refused("did you mean 'q3_K'", LlamaCpp, type="q3_k")
    refused(r"unknown evaluator\.llama_cpp\.cache 'q8_0'", LlamaCpp, cache="q8_0")
    message = r"q3_K has blocks of 256 weights.* as q4_0"
    refused(message, gguf_model.check_inputs, tiny_llama(), "q3_K", "f16")
    message = r"q6_K .* the head .* as q8_0"
    refused(message, gguf_model.check_inputs, tiny_llama(), "f16", "q6_K")
    refused("of type 'opt'", gguf_model.check_inputs, tiny_opt(), "q4_0", "f16")


@pytest.mark.parametrize("kind", ["q4_0", "q3_K", "q2_K"])
def test_decodes_what_the_model_decodes(kind):
    """Where the peer is installed; it rounds weights as far as the type says."""
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    model = wide(512)
    measured = LlamaCpp(tokens=16, repeats=2, type=kind, head="q6_K").measure(subject(model))
    assert measured.values["tokens_per_s"] > 0
    assert len(measured.samples) == 2
    (kernel,) = measured.facts["kernel"]
    assert kind in kernel
    assert (measured.facts["head"], measured.facts["cache"]) == ("q6_K", "f16")
    encoded = gguf_model.encode(model, kind, "f16", threads=1)
    for name, weight in gguf_model.tensors(model):
        if encoded[name].type == kind:
            error = (gguf_model.rounded(encoded[name]) - weight).norm() / weight.norm()
            assert 0.02 < error < {"q4_0": 0.1, "q3_K": 0.2, "q2_K": 0.4}[kind]


def test_kld_is_that_of_the_peers_own_logits(tmp_path):
    """Of a trained model and its Q4_0; the peer rounds activations to 8 bits, which moves both models alike."""
    pytest.importorskip("llama_cpp")
    spec = ModelSpec("llama-embedded-s", "embedded", "llama-embedded-s")
    loaded = load_model(spec, torch.float32, "cpu", 0)
    window = loaded.tokenizer(argparse.__doc__, return_tensors="pt").input_ids[0, :128]
    coded = lutlab.quantize(copy.deepcopy(loaded.model), method="ggml", type="Q4_0")
    theirs, ours = [], []
    for name, model in (("full", loaded.model), ("coded", coded)):
        path = tmp_path / f"{name}.gguf"
        gguf_file.write(model.config, gguf_model.encode(model, "f32", "f32", 1), path)
        with gguf_model.Decoder(path, len(window), 1, cache="f32") as decoder:
            decoder.rewind()
            theirs.append(torch.tensor(np.stack([decoder.step(t).copy() for t in window.tolist()])))
        ours.append(model(window[None]).logits[0].detach())
    peers, own = (token_kl(*(x[None] for x in some))[0][0] for some in (theirs, ours))
    assert own.mean() > 0.01
    assert peers.mean().item() == pytest.approx(own.mean().item(), rel=0.05)
    assert torch.corrcoef(torch.stack([peers, own]))[0, 1] > 0.98


def test_layers_of_method_ggml_are_in_the_file_byte_for_byte():
    """Of 256 and 352 inputs, so that down_proj has the fall-back; without a library that decodes it."""
    pytest.importorskip("llama_cpp")
    options = {"type": "IQ4_XS", "fallback": True}
    model = lutlab.quantize(wide(352), method="ggml", **options)
    run = ModelRun(ModelSpec("m", "folder", "m"), "ggml", 4, 32, options=tuple(options.items()))
    measured = LlamaCpp(tokens=8, repeats=1).measure(subject(model, run=run))
    assert measured.facts["kernel"] == [llama_cpp.name("IQ4_NL and IQ4_XS")]
    encoded = gguf_model.encode(model, "f16", "f16", threads=1)
    layers = {"mlp.down_proj": ("ffn_down", None), "self_attn.k_proj": ("attn_k", 2)}
    for layer, (part, heads) in layers.items():
        packed = model.model.layers[0].get_submodule(layer).packed
        there = encoded[f"blk.0.{part}.weight"]
        assert torch.equal(gguf_model.rounded(there, heads), packed.dequantize())
        assert there.values.nbytes * 8 == packed.bits_stored


def test_the_check_takes_what_rounding_explains_and_nothing_more():
    model, coarse = tiny_llama(), tiny_llama()
    encoded = gguf_model.encode(model, "f16", "f16", threads=1)
    coarse.load_state_dict({k: v.half().float() for k, v in model.state_dict().items()})
    ids = [1]
    for _ in range(llama_cpp.CHECKED):
        logits = coarse(input_ids=torch.tensor([ids])).logits[0].detach()
        ids.append(int(logits[-1].argmax()))

    def check(logits):
        rows = iter(logits.numpy())
        decoder = SimpleNamespace(rewind=lambda: None, step=lambda token: next(rows))
        return llama_cpp.check(model, encoded, decoder, 1)

    errors = check(logits)
    assert 0 <= errors["logits_error"] <= 2 * errors["logits_error_expected"] + 2**-10
    assert errors["logits_cosine"] > 0.999
    for other in (logits.roll(1, dims=1), logits * 1.01, logits * float("nan")):
        refused("computes something else", check, other)
