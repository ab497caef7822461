"""The peer's column: not run, and why, where it is absent; the GGUF it is given; its decoding where it is there."""

import importlib.util

import pytest
import torch
from tests.tiny_models import one_thread, tiny_llama, tiny_opt  # noqa: F401
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import lutlab
from lutlab.errors import LutlabError
from lutlab.evaluators import llama_cpp
from lutlab.evaluators.llama_cpp import LlamaCpp
from lutlab.specs import Subject

pytestmark = pytest.mark.usefixtures("one_thread")


def subject(model):
    return Subject(model, None, (), None, 64)


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_without_the_peer_the_cell_is_not_run(command, absent):
    outcome = command("+exp=qigen/fig4", "rows=[llama-7b/g64]", "mode=plan", "logger=none")
    assert outcome.code == 0, outcome.err
    assert "not run: llama_cpp and gguf not installed: pip install" in outcome.out


def test_without_the_peer_measuring_says_so(absent):
    with pytest.raises(LutlabError, match="pip install llama-cpp-python gguf"):
        LlamaCpp().measure(subject(tiny_llama()))


def test_every_weight_has_its_name_and_quantized_layers_are_dequantized():
    model = tiny_llama()
    lutlab.quantize(model, method="rtn", q=4, g=16)
    found = dict(llama_cpp._tensors(model))
    assert len(found) == 3 + 2 * 9
    down = model.model.layers[1].mlp.down_proj
    assert torch.equal(found["blk.1.ffn_down.weight"], down.packed.dequantize())
    assert sum(v.numel() for v in found.values()) == sum(
        p.numel() for p in tiny_llama().parameters()
    )


def test_rows_of_q_are_in_the_order_that_llama_cpp_rotates():
    """Rotating neighbours after the reordering equals transformers' rotation of halves before it."""
    heads, width = 2, 8
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(heads * width, 16, generator=generator)
    x = torch.randn(16, generator=generator)
    angle = torch.rand(width // 2, generator=generator)
    cos, sin = angle.cos(), angle.sin()
    q = (weight @ x).view(1, heads, 1, width)
    theirs, _ = apply_rotary_pos_emb(
        q, q, torch.cat((cos, cos))[None, None], torch.cat((sin, sin))[None, None]
    )
    pairs = (llama_cpp._interleaved(weight, heads) @ x).view(heads, width // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=2)
    halves = rotated.transpose(1, 2).reshape(heads, width)
    assert torch.allclose(halves, theirs.view(heads, width), atol=1e-6)


def test_the_file_holds_the_weights_and_the_numbers(tmp_path):
    gguf = pytest.importorskip("gguf")
    model = tiny_llama()
    llama_cpp._write_gguf(model, tmp_path / "model.gguf")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    found = {tensor.name: torch.tensor(tensor.data) for tensor in reader.tensors}
    for name, values in llama_cpp._tensors(model):
        assert torch.equal(found[name].view(values.shape), values)
    assert reader.fields["llama.attention.head_count_kv"].contents() == 1
    assert reader.fields["llama.vocab_size"].contents() == 260


def test_decodes_what_the_model_decodes():
    """Where the peer is installed, q4_0 is near enough; a model of other weights is noticed."""
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    config = LlamaConfig(
        vocab_size=300, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, initializer_range=0.05,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    found = LlamaCpp(tokens=16, repeats=2).measure(subject(model))
    assert found.values["tokens_per_s"] > 0
    assert len(found.samples) == 2
    (kernel,) = found.facts["kernel"]
    assert "q4_0" in kernel


def test_other_logits_are_refused():
    model = tiny_llama()
    ids = [1, 2, 3]
    ours = model(input_ids=torch.tensor([ids])).logits[0].detach()
    llama_cpp._check(model, ids, [*ours.numpy()])
    with pytest.raises(LutlabError, match="cosine"):
        llama_cpp._check(model, ids, [*ours.roll(1, dims=1).numpy()])
    with pytest.raises(LutlabError, match="cosine of nan"):
        llama_cpp._check(model, ids, [*(ours * float("nan")).numpy()])


def test_other_families_are_refused(tmp_path):
    pytest.importorskip("gguf")
    with pytest.raises(LutlabError, match="this one is 'opt'"):
        llama_cpp._write_gguf(tiny_opt(), tmp_path / "model.gguf")
