"""A quantized table of tokens: the rows of what it stores, the same model after a save, in every engine and layout."""

from __future__ import annotations

import pytest
import torch
from tests.models.architectures import config, make, randomized
from tests.tiny_models import byte_tokenizer
from transformers import AutoModelForCausalLM

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.embeddings import QuantEmbedding, TiedHead, quantize_embeddings
from lutlab.models.families import model_class
from lutlab.quantizers.rtn import RTN

IDS = torch.tensor([[3, 7, 7, 60], [1, 0, 2, 5]])


def model_of(name: str, tied: bool, embeddings: int | None = 8):
    changed = {"hidden_size": 64, "intermediate_size": 96} if name == "llama-2" else {}
    written = config(name)
    for key, value in {"tie_word_embeddings": tied, **changed}.items():
        setattr(written, key, value)
    torch.manual_seed(0)
    model = randomized(model_class(written).from_config(written))
    lutlab.quantize(model, "rtn", q=4, g=32, symmetric=True, embeddings=embeddings)
    return model


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize(
    ("name", "tied", "q"),
    [("llama-2", True, 8), ("llama-2", False, 8), ("opt", True, 4), ("gpt2", True, 8)],
)
def test_a_model_computes_by_the_rounded_table(name, tied, q, tmp_path):
    model, naive = model_of(name, tied, q), model_of(name, tied, None)
    tensor = RTN(symmetric=True).quantize(naive.get_input_embeddings().weight, q, 32)
    levels = (
        tensor.codes.float()
        - tensor.zero_point.repeat_interleave(32, 1)[:, : tensor.codes.shape[1]]
    )
    table = levels * tensor.scale.float().repeat_interleave(32, 1)[:, : levels.shape[1]]
    if not tied:
        head = naive.get_output_embeddings().weight
        head.copy_(lutlab.quantize_tensor(head, "rtn", q, 32, symmetric=True).dequantize())
    naive.get_input_embeddings().weight.copy_(table)
    expected, found = naive(IDS).logits, model(IDS).logits
    assert torch.allclose(found, expected, atol=1e-4, rtol=1e-4)
    lutlab.save(model, tmp_path / "saved")
    for again in (
        lutlab.load(tmp_path / "saved"),
        AutoModelForCausalLM.from_pretrained(tmp_path / "saved"),
    ):
        assert isinstance(again.get_input_embeddings(), QuantEmbedding)
        assert isinstance(again.get_output_embeddings(), TiedHead) == tied
        assert torch.equal(again(IDS).logits, found)


def test_the_table_is_stored_once(tmp_path):
    model = model_of("llama-2", tied=True)
    assert sum("lm_head" in name for name in model.state_dict()) == 0
    assert next(iter(quantized_layers(model))) == "model.embed_tokens"
    half = model.to(torch.float16)
    assert half(IDS).logits.dtype == torch.float16


@pytest.mark.parametrize("name", ["llama-2", "opt"])
def test_the_engine_reads_codes(name):
    model = model_of(name, tied=True)
    engine = lutlab.engine(model, batch=1, length=8)
    assert engine.facts()["engine"] == "cpu_step"
    logits = engine.prefill([IDS[0]])
    assert torch.allclose(logits[0], model(IDS[:1]).logits[0, -1], atol=1e-3)
    plain = lutlab.engine(model_of(name, tied=True, embeddings=None), batch=1, length=8)
    assert engine.bytes_read(1)["head"] < plain.bytes_read(1)["head"]


def test_other_layouts(tmp_path):
    model = model_of("llama-2", tied=True)
    found = model(IDS).logits
    lutlab.export_compressed_tensors(model, tmp_path / "compressed")
    lutlab.export_gptq(model, tmp_path / "gptq")
    lutlab.export_gguf(model, tmp_path / "model.gguf", byte_tokenizer())
    for place in ("compressed", "gptq", "model.gguf"):
        assert torch.allclose(
            lutlab.load(tmp_path / place, "float32")(IDS).logits, found, atol=2e-3
        ), place


def test_what_cannot_be_quantized_is_refused():
    model = model_of("llama-2", tied=True)
    with pytest.raises(LutlabError, match="quantized already"):
        quantize_embeddings(model, 8)
    with pytest.raises(LutlabError, match="no causal"):
        lutlab.quantize(make("bert"), "rtn", q=4, g=16, embeddings=8)
