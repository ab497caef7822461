"""The quantized weights of GGUF files as they are: against the dense model of the same file, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.gguf import gguf_files
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelSpec
from lutlab.checkpoint.foreign import gguf_packed
from lutlab.gguf import folder as gguf
from lutlab.models.load import load_model
from lutlab.modules import QuantLinear

# Between the models each type once, on rows that are permuted and on those that are not.
TYPES = {
    "llama": {"q_proj": "Q4_0", "k_proj": "Q5_1", "v_proj": "Q2_K", "o_proj": "Q1_0", "gate_proj": "Q3_K",
              "up_proj": "Q5_0", "down_proj": "TQ1_0", "embed_tokens": "Q8_0"},
    "llama-biases": {"q_proj": "Q6_K", "k_proj": "Q8_0", "v_proj": "Q5_K", "o_proj": "Q4_1", "gate_proj": "F16",
                     "up_proj": "TQ2_0", "down_proj": "Q4_K", "embed_tokens": "IQ4_NL", "lm_head": "Q6_K"},
    "qwen3": {"q_proj": "Q4_1", "k_proj": "Q4_K", "v_proj": "F32", "o_proj": "Q6_K", "gate_proj": "Q4_0",
              "up_proj": "Q4_0", "down_proj": "Q8_0", "embed_tokens": "F16", "lm_head": "F16"},
}  # fmt: skip
SYMMETRIC = {"rtn": {"symmetric": True}, "bcq": {}}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one than the kernels' own."""
    monkeypatch.setattr(gguf, "cache_folder", lambda name: tmp_path / "cache" / name)


def write(path: Path, name: str) -> Path:
    return gguf_files.write(path, gguf_files.make(name), lambda n: TYPES[name][n.split(".")[-2]])


@pytest.mark.parametrize("name", TYPES)
def test_packed_weights_are_the_dense_ones(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", name)
    dense = load_model(ModelSpec("x", "folder", str(path)), torch.float32, "cpu", 0).model
    packed = lutlab.load(path)
    layers = {n: m for n, m in packed.named_modules() if isinstance(m, QuantLinear)}
    kinds = {n: TYPES[name][n.split(".")[-1]] for n, _ in dense.named_modules() if "proj" in n or n == "lm_head"
             if not (n == "lm_head" and dense.config.tie_word_embeddings)}  # fmt: skip
    assert set(layers) == {n for n, kind in kinds.items() if kind not in ("F16", "F32")}
    for layer, module in layers.items():
        assert torch.equal(module.packed.dequantize(), dense.get_submodule(layer).weight), layer
    for parameter, value in packed.named_parameters():
        assert torch.equal(value, dense.get_parameter(parameter)), parameter
    ids = torch.tensor([[5, 9, 200, 31, 7, 7, 120]])
    with torch.no_grad():
        torch.testing.assert_close(packed(ids).logits, dense(ids).logits, rtol=1e-4, atol=1e-3)


def test_a_stored_row_beside_a_quantized_one(command, tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", "llama")
    asked = ["model=folder", f"model.id={path}", "logger=none", "evaluate=[model_size,ppl:lambada-joined]",
             "data.limit=1"]  # fmt: skip
    assert command(*asked, "method=stored").code == 0
    runs = [record["run"] for record in command.records().values() if stored_as(record)]
    assert {(run["q"], run["g"]) for run in runs} == {(3.167, 32)}
    assert command(*asked, "method=rtn", "q=4", "g=32").code == 0
    sizes = {
        bool(stored_as(r)): r for r in command.records().values() if "megabytes" in r["values"]
    }
    kinds = TYPES["llama"]
    assert stored_as(sizes[True])["types"] == {kinds[n]: 2 for n in kinds if n != "embed_tokens"}
    assert len({tuple(r["values"].items()) for r in command.records().values()}) == 6


def stored_as(record: dict) -> dict | None:
    return record["facts"].get("stored_as")


@pytest.mark.parametrize(("method", "q", "g"), [("rtn", 4, 32), ("rtn", 8, 32), ("bcq", 1, 128)])
def test_what_is_exported_is_read_again(method: str, q: int, g: int, tmp_path: Path) -> None:
    made = lutlab.quantize(gguf_files.make("llama"), method=method, q=q, g=g, **SYMMETRIC[method])
    lutlab.export_gguf(made, tmp_path / "x.gguf", byte_tokenizer())
    found = lutlab.load(tmp_path / "x.gguf")
    layers = {n: m for n, m in made.named_modules() if isinstance(m, QuantLinear)}
    assert len(layers) == 14
    for name, layer in layers.items():
        ours, theirs = layer.packed.unpack(), found.get_submodule(name).packed.unpack()
        assert torch.equal(ours.codes, theirs.codes), name
        assert torch.equal(layer.packed.dequantize(), found.get_submodule(name).packed.dequantize())


def test_types_without_steps_of_one_size_are_refused_by_name(tmp_path: Path) -> None:
    model = gguf_files.make("llama")
    path = gguf_files.write(tmp_path / "x.gguf", model, lambda n: "IQ4_NL")
    with pytest.raises(
        LutlabError, match=r"blk\.0\.attn_q\.weight is of type IQ4_NL, whose values are not steps"
    ):
        lutlab.load(path)
    plain = gguf_files.write(tmp_path / "y.gguf", model, lambda n: "F16")
    with pytest.raises(LutlabError, match="are not quantized: read it in full precision"):
        gguf_packed.unpacked(plain)
