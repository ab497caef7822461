"""What was read is written and read again: the same model, or a refusal that says what keeps it; every pair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.checkpoint.readers import (
    BINARY,
    READERS,
    Change,
    biases,
    changed,
    generating,
    logits,
    setting,
)
from tests.tiny_models import byte_tokenizer
from transformers import PreTrainedModel

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.gguf import folder as gguf
from lutlab.models.families import ends_of_text

VARIANTS: dict[str, Change] = {
    "plain": setting(),
    "biases": biases(0.01),
    "ends": generating(eos_token_id=[7, 9, 0]),
}
Writer = Callable[[PreTrainedModel, Path], None]
WRITERS: dict[str, Writer] = {
    "save": lambda m, path: lutlab.save(m, path, byte_tokenizer()),
    "save_pretrained": lambda m, path: m.save_pretrained(path),
    "gptq": lambda m, path: lutlab.export_gptq(m, path, byte_tokenizer()),
    "pack-quantized": lambda m, path: lutlab.export_compressed_tensors(m, path, byte_tokenizer()),
    "int-quantized": lambda m, path: lutlab.export_compressed_tensors(
        m, path, byte_tokenizer(), "int-quantized"
    ),
    "gguf": lambda m, path: lutlab.export_gguf(m, path, byte_tokenizer(), wider=True),
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of GGUF files unpacked."""
    monkeypatch.setattr(gguf, "cache_folder", lambda name: tmp_path / "cache" / name)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("reader", [*READERS, "gguf"])
def test_a_round_trip_is_the_model_or_says_what_keeps_it(
    reader: str, writer: str, variant: str, folders: Path, tmp_path: Path
) -> None:
    source = "own" if reader == "gguf" else reader
    if source == "own" and variant == "biases":
        source = "gptq"  # of which lutlab.save writes a folder of our own
    folder = changed(folders / source, tmp_path / "changed", VARIANTS[variant])
    model = lutlab.load(folder)
    if reader == "gguf":
        if variant == "biases":
            return
        lutlab.export_gguf(model, tmp_path / "x.gguf", byte_tokenizer())
        model = lutlab.load(tmp_path / "x.gguf")
    path = tmp_path / ("again.gguf" if writer == "gguf" else "again")
    refusal = ""
    try:
        WRITERS[writer](model, path)
    except LutlabError as error:
        refusal = str(error)
    if refusal:
        assert not path.exists()
        assert any(word in refusal for word in ("lutlab.save", "export_", "method=")), refusal
        assert writer not in ("save", "save_pretrained")
        assert variant == "biases" or reader in (*BINARY, "efficientqat")
        return
    again = lutlab.load(path)
    torch.testing.assert_close(logits(again), logits(model), rtol=1e-5, atol=1e-5)
    assert ends_of_text(again) == ends_of_text(model)
