"""What the files of a folder say is honoured or refused by name, whoever wrote them: a contract over all readers.

The reference is transformers' own load of the dense folder with the same weights, changed in the same way.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.checkpoint.readers import (
    READERS,
    Change,
    adding,
    biases,
    casting,
    changed,
    dropping,
    generating,
    logits,
    setting,
    tied,
)
from tests.checkpoint.test_foreign import rewrite
from transformers import AutoModelForCausalLM, PreTrainedModel

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import write_sums
from lutlab.base.specs import ModelSpec
from lutlab.checkpoint.loading import load_mapped
from lutlab.models.families import ends_of_text
from lutlab.models.load import fingerprint, load_model

NORM = "model.layers.1.input_layernorm.weight"
HONOURED: dict[str, Change] = {
    "nothing": setting(),
    "rotation": setting(rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
    "epsilon": setting(rms_norm_eps=0.1),
    "activation": setting(hidden_act="gelu"),
    "ends": generating(eos_token_id=[7, 9]),
    "no-end": generating(eos_token_id=None),
    "end-of-the-config": setting(eos_token_id=9),
    "unknown-key": setting(of_tomorrow="x"),
    "tied-and-there": tied(equal=True),
    "masks": adding("model.layers.0.self_attn.rotary_emb.inv_freq"),
    "another-head": adding("score.weight"),
    "dtype-of-a-norm": casting(NORM, torch.float16),
}
# Of layers of other projects' alone: transformers leaves out what the config does not announce.
BIASED: dict[str, Change] = {"biases": biases(0.01), "zero-biases": biases(0.0)}
REFUSED: dict[str, tuple[Change, str]] = {
    "tied-to-others": (tied(equal=False), "ties lm_head.weight to model.embed_tokens.weight"),
    "untied-and-missing": (dropping("lm_head.weight"), "lm_head"),
    "norm-missing": (dropping(NORM), r"layers\.1\.input_layernorm"),
    "fewer-blocks": (setting(num_hidden_layers=1), r"model\.layers\.1"),
    "more-blocks": (setting(num_hidden_layers=3), r"layers\.2"),
    "vocabulary": (setting(vocab_size=256), r"embed_tokens|lm_head|ignore_mismatched_sizes"),
    "scaled-activations": (adding("model.layers.0.mlp.act.scales"), r"mlp\.act\.scales"),
    "scaled-cache": (adding("model.layers.1.self_attn.k_scale"), r"self_attn\.k_scale"),
    "bias-of-the-head": (adding("lm_head.bias"), r"first lm_head\.bias"),
    "bias-of-a-norm": (adding("model.norm.bias"), r"first model\.norm\.bias"),
}


def spec_of(folder: Path) -> ModelSpec:
    return ModelSpec("x", "folder", str(folder))


def mapped(folder: Path) -> PreTrainedModel:
    model, blocks = load_mapped(folder)
    blocks.fill()
    return model


def dense(stream: bool) -> Callable[[Path], PreTrainedModel]:
    def read(folder: Path) -> PreTrainedModel:
        found = load_model(spec_of(folder), torch.float32, "cpu", 0, stream=stream)
        if stream:
            found.blocks.fill()
        return found.model

    return read


def adapter(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder)


TAKES_BOTH = (
    "own",
    "own, transformers",
    "dense",
)  # a tied head with values of its own, as transformers does
WAYS = {
    "own, transformers": ("own", adapter),
    **{name: (name, lutlab.load) for name in READERS},
    "own, mapped": ("own", mapped),
    "dense, mapped": ("own-dense", mapped),
    "dense": ("own-dense", dense(stream=False)),
    "dense, streamed": ("own-dense", dense(stream=True)),
}


@pytest.mark.parametrize("name", [*HONOURED, *BIASED])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_read_is_what_transformers_reads(
    way: str, name: str, folders: Path, tmp_path: Path
) -> None:
    source, read = WAYS[way]
    change = (HONOURED | BIASED)[name]
    folder = changed(folders / source, tmp_path / "changed", change)
    dense = changed(folders / f"{source.partition('-dense')[0]}-dense", tmp_path / "dense", change)
    if name in BIASED:
        rewrite(dense, None, attention_bias=True, mlp_bias=True)
        if "dense" in way or source == "own":
            with pytest.raises(LutlabError, match=r"no place for, first .*_proj\.bias"):
                read(folder)
            return
    expected = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32)
    found = read(folder)
    torch.testing.assert_close(logits(found), logits(expected), rtol=1e-4, atol=1e-4)
    assert ends_of_text(found) == ends_of_text(expected)
    tied = expected.lm_head.weight is expected.model.embed_tokens.weight
    assert (found.lm_head.weight is found.model.embed_tokens.weight) == tied


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("way", WAYS)
def test_what_would_be_another_model_is_refused(
    way: str, name: str, folders: Path, tmp_path: Path
) -> None:
    source, read = WAYS[way]
    change, message = REFUSED[name]
    folder = changed(folders / source, tmp_path / "changed", change)
    if name == "tied-to-others" and way in TAKES_BOTH:
        original = logits(read(folders / source))
        torch.testing.assert_close(logits(read(folder)), original, rtol=1e-4, atol=1e-4)
        return
    with pytest.raises((LutlabError, RuntimeError), match=message):
        read(folder)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "own, transformers"])
def test_a_damaged_generation_config_is_named(way: str, folders: Path, tmp_path: Path) -> None:
    source, read = WAYS[way]
    folder = Path(shutil.copytree(folders / source, tmp_path / "changed"))
    (folder / "generation_config.json").write_text("{")
    if source == "own":
        write_sums(folder)
    with pytest.raises(LutlabError, match=r"generation_config\.json"):
        read(folder)


@pytest.mark.parametrize("stated", ["", "weights-4bit"])
def test_files_may_be_called_as_auto_gptq_calls_them(
    stated: str, folders: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folders / "gptq", tmp_path / "theirs"))
    config = json.loads((folder / "config.json").read_text()).pop("quantization_config")
    rewrite(folder, None)
    if stated:
        config["model_file_base_name"] = stated
    (folder / "quantize_config.json").write_text(json.dumps(config))
    name = f"{stated or 'gptq_model-4bit-128g'}.safetensors"
    (folder / "model.safetensors").rename(folder / name)
    write_sums(folder)
    assert torch.equal(logits(lutlab.load(folder)), logits(lutlab.load(folders / "gptq")))
    assert fingerprint(spec_of(folder)).startswith("files:")
    shutil.copy(folder / name, folder / "gptq_model-3bit-64g.safetensors")
    write_sums(folder)
    if stated:  # one of two is named
        assert torch.equal(logits(lutlab.load(folder)), logits(lutlab.load(folders / "gptq")))
        return
    with pytest.raises(LutlabError, match=r"lacks model\.safetensors"):
        lutlab.load(folder)
