"""A quantized table of tokens: the rows of what it stores, the same model after a save, in every engine and layout."""

import pytest
import torch
from tests.base.refusals import refused
from tests.models.architectures import config, make, randomized
from tests.tiny_models import byte_tokenizer
from transformers import AutoModelForCausalLM

import lutlab
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.embeddings import QuantEmbedding, TiedHead, quantize_embeddings
from lutlab.models.families import model_class
from lutlab.quantizers.rtn import RTN

IDS = torch.tensor([[3, 7, 7, 60], [1, 0, 2, 5]])


def model_of(name, tied, embeddings=8):
    written = config(name)
    written.tie_word_embeddings = tied
    if name == "llama-2":
        written.hidden_size, written.intermediate_size = 64, 96
    torch.manual_seed(0)
    model = randomized(model_class(written).from_config(written))
    return lutlab.quantize(model, "rtn", q=4, g=32, symmetric=True, embeddings=embeddings)


@pytest.mark.parametrize(
    ("name", "tied", "q"),
    [("llama-2", True, 8), ("llama-2", False, 8), ("opt", True, 4), ("gpt2", True, 8)],
)
@torch.no_grad()
def test_a_model_computes_by_the_rounded_table(name, tied, q, tmp_path):
    model, naive = model_of(name, tied, q), model_of(name, tied, None)
    embedding = naive.get_input_embeddings().weight
    tensor = RTN(symmetric=True).quantize(embedding, q, 32)
    scale, zero = (x.float().repeat_interleave(32, 1) for x in (tensor.scale, tensor.zero_point))
    embedding.copy_((tensor.codes - zero) * scale)
    if not tied:
        head = naive.get_output_embeddings().weight
        head.copy_(lutlab.quantize_tensor(head, "rtn", q, 32, symmetric=True).dequantize())
    logits = model(IDS).logits
    assert torch.allclose(logits, naive(IDS).logits, atol=1e-4, rtol=1e-4)
    lutlab.save(model, tmp_path / "saved")
    for read in (lutlab.load, AutoModelForCausalLM.from_pretrained):
        again = read(tmp_path / "saved")
        assert isinstance(again.get_input_embeddings(), QuantEmbedding)
        assert isinstance(again.get_output_embeddings(), TiedHead) == tied
        assert torch.equal(again(IDS).logits, logits)


@pytest.mark.parametrize("name", ["llama-2", "opt"])
@torch.no_grad()
def test_the_engine_reads_codes(name):
    model = model_of(name, tied=True)
    engine = lutlab.engine(model, batch=1, length=8)
    assert engine.facts()["engine"] == "cpu_step"
    logits = engine.prefill([IDS[0]])
    assert torch.allclose(logits[0], model(IDS[:1]).logits[0, -1], atol=1e-3)
    plain = lutlab.engine(model_of(name, tied=True, embeddings=None), batch=1, length=8)
    assert engine.bytes_read(1)["head"] < plain.bytes_read(1)["head"]


@torch.no_grad()
def test_the_table_is_stored_once_and_in_other_layouts(tmp_path):
    model = model_of("llama-2", tied=True)
    assert not any("lm_head" in name for name in model.state_dict())
    assert next(iter(quantized_layers(model))) == "model.embed_tokens"
    lutlab.export_compressed_tensors(model, tmp_path / "compressed")
    lutlab.export_gptq(model, tmp_path / "gptq")
    lutlab.export_gguf(model, tmp_path / "model.gguf", byte_tokenizer())
    for place in ("compressed", "gptq", "model.gguf"):
        again = lutlab.load(tmp_path / place, "float32")
        assert torch.allclose(again(IDS).logits, model(IDS).logits, atol=2e-3), place
    assert model.to(torch.float16)(IDS).logits.dtype == torch.float16
    refused("quantized already", quantize_embeddings, model, 8)
    refused("no causal", lutlab.quantize, make("bert"), "rtn", q=4, g=16, embeddings=8)
