"""A config.json whose heads do not fit is refused, wherever a folder is read."""

from __future__ import annotations

import json

import pytest
import torch
from tests.tiny_models import byte_tokenizer, tiny_llama, tiny_opt

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelSpec
from lutlab.models.load import load_model
from lutlab.models.pretrained import check_heads
from lutlab.models.shape import shape_of


def changed(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_attention_heads": 3}, "3 attention heads do not divide the hidden size of 32"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, no positive integer"),
        ({"num_attention_heads": "two"}, "is 'two', no positive integer"),
        (
            {"num_attention_heads": 4, "num_key_value_heads": 3},
            "3 key-value heads do not divide the 4",
        ),
    ],
)
def test_heads_that_do_not_fit_are_refused(tmp_path, values, said):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 32} | values))
    with pytest.raises(LutlabError, match=f"config.json: .*{said}.*fetch it again"):
        check_heads(tmp_path)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"n_head": 12, "n_embd": 768},
        {"num_attention_heads": 5, "hidden_size": 32, "head_dim": 16},
    ],
)
def test_heads_that_fit_and_defaults_are_not(tmp_path, values):
    (tmp_path / "config.json").write_text(json.dumps(values))
    check_heads(tmp_path)


def test_whoever_reads_a_folder_refuses_them(tmp_path):
    plain, quantized = tmp_path / "plain", tmp_path / "quantized"
    tiny_opt().save_pretrained(plain)
    byte_tokenizer().save_pretrained(plain)
    lutlab.save(lutlab.quantize(tiny_llama(), "rtn", q=4, g=16), quantized)
    spec = ModelSpec("plain", "folder", str(changed(plain, num_attention_heads=5)))
    changed(quantized, num_key_value_heads=3, num_attention_heads=2)
    (quantized / "SHA256SUMS").unlink()  # it names the config.json that was saved
    for read in (
        lambda: load_model(spec, torch.float32, "cpu", 0),
        lambda: shape_of(spec),
        lambda: lutlab.load(quantized),
    ):
        with pytest.raises(LutlabError, match="heads do not divide the"):
            read()
