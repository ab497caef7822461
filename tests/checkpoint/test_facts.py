"""What the files of a folder say is honoured or refused by name, whoever wrote them: a contract over all readers.

The reference is transformers' own load of the dense folder with the same weights, changed in the same way.
"""

import functools
import json
import shutil

import pytest
import torch
from tests.base.refusals import refused
from tests.checkpoint import readers
from tests.models.architectures import logits
from tests.models.folders import loaded, spec
from transformers import AutoModelForCausalLM

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import write_sums
from lutlab.checkpoint.loading import load_mapped
from lutlab.models.families import ends_of_text
from lutlab.models.load import fingerprint

NORM = "model.layers.1.input_layernorm.weight"
HONOURED = {
    "nothing": readers.setting(),
    "rotation": readers.setting(rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
    "epsilon": readers.setting(rms_norm_eps=0.1), "activation": readers.setting(hidden_act="gelu"),
    "ends": readers.generating(eos_token_id=[7, 9]), "no-end": readers.generating(eos_token_id=None),
    "end-of-the-config": readers.setting(eos_token_id=9), "unknown-key": readers.setting(of_tomorrow="x"),
    "tied-and-there": readers.tied(equal=True), "another-head": readers.adding("score.weight"),
    "masks": readers.adding("model.layers.0.self_attn.rotary_emb.inv_freq"),
    "dtype-of-a-norm": readers.casting(NORM, torch.float16),
}  # fmt: skip
# Of layers of other projects' alone: transformers leaves out what the config does not announce.
BIASED = {"biases": readers.biases(0.01), "zero-biases": readers.biases(0.0)}
REFUSED = {
    "tied-to-others": (readers.tied(equal=False), "ties lm_head.weight to model.embed_tokens"),
    "untied-and-missing": (readers.dropping("lm_head.weight"), "lm_head"),
    "norm-missing": (readers.dropping(NORM), r"layers\.1\.input_layernorm"),
    "fewer-blocks": (readers.setting(num_hidden_layers=1), r"model\.layers\.1"),
    "more-blocks": (readers.setting(num_hidden_layers=3), r"layers\.2"),
    "vocabulary": (readers.setting(vocab_size=256), r"embed_tokens|lm_head|ignore_mismatched"),
    "scaled-activations": (readers.adding("model.layers.0.mlp.act.scales"), r"mlp\.act\.scales"),
    "scaled-cache": (readers.adding("model.layers.1.self_attn.k_scale"), r"self_attn\.k_scale"),
    "bias-of-the-head": (readers.adding("lm_head.bias"), r"first lm_head\.bias"),
    "bias-of-a-norm": (readers.adding("model.norm.bias"), r"first model\.norm\.bias"),
}
TIES = ("own", "own, transformers", "dense")  # a head with values of its own, as transformers does


def mapped(folder):
    model, blocks = load_mapped(folder)
    blocks.fill()
    return model


def dense(folder, stream=False):
    model = loaded(folder, stream=stream)
    if stream:
        model.blocks.fill()
    return model.model


WAYS = {
    "own, transformers": ("own", AutoModelForCausalLM.from_pretrained),
    **{name: (name, lutlab.load) for name in readers.READERS},
    "own, mapped": ("own", mapped), "dense, mapped": ("own-dense", mapped),
    "dense": ("own-dense", dense), "dense, streamed": ("own-dense", functools.partial(dense, stream=True)),
}  # fmt: skip


def is_tied(model):
    return model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("name", [*HONOURED, *BIASED])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_read_is_what_transformers_reads(way, name, folders, tmp_path):
    source, read = WAYS[way]
    change = (HONOURED | BIASED)[name]
    folder = readers.changed(folders / source, tmp_path / "changed", change)
    dense = folders / f"{source.partition('-dense')[0]}-dense"
    dense = readers.changed(dense, tmp_path / "dense", change)
    if name in BIASED:
        readers.rewrite(dense, None, attention_bias=True, mlp_bias=True)
        if "dense" in way or source == "own":
            refused(r"no place for, first .*_proj\.bias", read, folder)
            return
    expected = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32)
    model = read(folder)
    y, expected_y = logits(model).float(), logits(expected)
    torch.testing.assert_close(y, expected_y, rtol=1e-4, atol=1e-4)
    assert ends_of_text(model) == ends_of_text(expected)
    assert is_tied(model) == is_tied(expected)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("way", WAYS)
def test_what_would_be_another_model_is_refused(way, name, folders, tmp_path):
    source, read = WAYS[way]
    change, message = REFUSED[name]
    folder = readers.changed(folders / source, tmp_path / "changed", change)
    if name == "tied-to-others" and way in TIES:
        original = logits(read(folders / source))
        torch.testing.assert_close(logits(read(folder)), original, rtol=1e-4, atol=1e-4)
        return
    with pytest.raises((LutlabError, RuntimeError), match=message):
        read(folder)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "own, transformers"])
def test_a_damaged_generation_config_is_named(way, folders, tmp_path):
    source, read = WAYS[way]
    folder = shutil.copytree(folders / source, tmp_path / "changed")
    (folder / "generation_config.json").write_text("{")
    if source == "own":
        write_sums(folder)
    refused(r"generation_config\.json", read, folder)


@pytest.mark.parametrize("stated", ["", "weights-4bit"])
def test_files_may_be_called_as_auto_gptq_calls_them(stated, folders, tmp_path):
    folder = shutil.copytree(folders / "gptq", tmp_path / "theirs")
    config = readers.config_of(folder) | ({"model_file_base_name": stated} if stated else {})
    readers.rewrite(folder, None)
    (folder / "quantize_config.json").write_text(json.dumps(config))
    name = f"{stated or 'gptq_model-4bit-128g'}.safetensors"
    (folder / "model.safetensors").rename(folder / name)
    write_sums(folder)
    expected = logits(lutlab.load(folders / "gptq"))
    assert torch.equal(logits(lutlab.load(folder)), expected)
    assert fingerprint(spec(folder)).startswith("files:")
    shutil.copy(folder / name, folder / "gptq_model-3bit-64g.safetensors")
    write_sums(folder)
    if stated:  # one of two is named
        assert torch.equal(logits(lutlab.load(folder)), expected)
    else:
        refused(r"lacks model\.safetensors", lutlab.load, folder)
