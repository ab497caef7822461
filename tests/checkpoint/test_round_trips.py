"""What was read is written and read again: the same model, or a refusal that says what keeps it; every pair."""

import pytest
import torch
from tests.checkpoint.naive_layouts import BINARY
from tests.checkpoint.readers import READERS, biases, changed, generating, setting
from tests.models.architectures import logits
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.models.families import ends_of_text

VARIANTS = {"plain": setting(), "biases": biases(0.01), "ends": generating(eos_token_id=[7, 9, 0])}
WRITERS = {
    "save": lutlab.save, "save_pretrained": lambda model, path, _: model.save_pretrained(path),
    "gptq": lutlab.export_gptq, "gguf": lambda *model: lutlab.export_gguf(*model, wider=True),
    "pack-quantized": lutlab.export_compressed_tensors,
    "int-quantized": lambda *model: lutlab.export_compressed_tensors(*model, "int-quantized"),
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("reader", [*READERS, "gguf"])
def test_a_round_trip_is_the_model_or_refused(reader, writer, variant, folders, tmp_path):
    source = "own" if reader == "gguf" else reader
    if source == "own" and variant == "biases":
        source = "gptq"  # of which lutlab.save writes a folder of our own
    model = lutlab.load(changed(folders / source, tmp_path / "changed", VARIANTS[variant]))
    if reader == "gguf":
        if variant == "biases":
            return
        lutlab.export_gguf(model, tmp_path / "x.gguf", byte_tokenizer())
        model = lutlab.load(tmp_path / "x.gguf")
    path = tmp_path / ("again.gguf" if writer == "gguf" else "again")
    refusal = ""
    try:
        WRITERS[writer](model, path, byte_tokenizer())
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
