"""What a project's quantization config says of its weights: read, without effect, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig
from tests.checkpoint import naive_layouts as naive
from tests.checkpoint.readers import READERS, V1, Change, changed, logits, setting
from tests.checkpoint.test_foreign import rewrite
from transformers import PreTrainedModel
from transformers.utils import quantization_config as theirs

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.checkpoint.foreign.keys import NEUTRAL, READ, WEIGHTS_NEUTRAL, WEIGHTS_READ
from lutlab.checkpoint.foreign.reading import layout_of


def edited(
    folders: Path, name: str, folder: Path, tensors: Change | None = None, **keys: Any
) -> PreTrainedModel:
    """The model of a reader's folder with other keys in its quantization config, and other tensors."""
    changed(folders / name, folder, tensors or setting())
    said = json.loads((folder / "config.json").read_text())["quantization_config"]
    rewrite(folder, {**said, **keys})
    return lutlab.load(folder)


def add_to_fields(step: int, bits: int = 4) -> Change:
    """Every zero point as stored, plus a step."""

    def change(config: dict, generation: dict, tensors: dict) -> None:
        ones = sum(1 << at for at in range(0, 32, bits))
        for name in (name for name in tensors if name.endswith("qzeros")):
            tensors[name] = tensors[name] + step * ones

    return change


@pytest.mark.parametrize(
    ("stated", "meta"), [("gptq", ""), ("gptq", "gptqmodel:7.7.0"), ("", ""), ("gptq_v2", "")]
)
@pytest.mark.parametrize("step", [0, -1])
def test_symmetric_zero_points_are_the_middle_whatever_the_format_says(
    stated: str, meta: str, step: int, folders: Path, tmp_path: Path
) -> None:
    """Fields of 8 under the format that stores one less, of 7 under the other: sym fixes z = 2^(q-1)."""
    found = edited(
        folders, "gptq", tmp_path / "x", add_to_fields(step), checkpoint_format=stated, meta={"quantizer": [meta]}
    )  # fmt: skip
    assert torch.equal(logits(found), logits(lutlab.load(folders / "gptq")))


def test_of_eight_bits_too() -> None:
    config = V1 | {"bits": 8}
    codes = torch.randint(256, (32, 32), generator=torch.Generator().manual_seed(0)).tolist()
    made = naive.gptq(codes, [[128]] * 32, torch.ones(32, 1).half(), [0] * 32, 8)
    assert bool((layout_of(config).read(made, 32, 32).zero_point == 128).all())


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        (
            "gptq",
            {"dynamic": {"+:x": {"sym": False}}, "checkpoint_format": "gptq"},
            "all zero points are 9",
        ),
        ("gptq", {"activation": "fp8"}, "says activation='fp8', which lutlab does not read"),
        ("gptq", {"rotation": "hadamard"}, "rotation='hadamard'"),
        ("gptq", {"dynamic": {"+:x": {"adapter": {"rank": 2}}}}, r"for \+:x says adapter="),
        ("auto-round", {"act_bits": 8}, "act_bits=8"),
        ("auto-round", {"data_type": "mx_fp"}, "data_type='mx_fp'"),
        (
            "auto-round",
            {"extra_config": {"lm_head": {"act_bits": 4}}},
            "for lm_head says act_bits=4",
        ),
        ("awq", {"of_tomorrow": 1}, "awq checkpoint's config says of_tomorrow=1"),
        ("anybcq", {}, None),
    ],
)
def test_keys_that_change_numbers_are_refused(
    name: str, keys: dict, message: str | None, folders: Path, tmp_path: Path
) -> None:
    if message:
        with pytest.raises(LutlabError, match=message):
            edited(folders, name, tmp_path / "x", **keys)
    else:
        assert lutlab.load(folders / name)


def test_a_statement_of_the_config_that_the_tensors_deny_is_refused(
    folders: Path, tmp_path: Path
) -> None:
    with pytest.raises(LutlabError, match="zero points are not all stored as 8 or all as 7"):
        edited(folders, "gptq", tmp_path / "a", add_to_fields(2))
    with pytest.raises(LutlabError, match=r"symmetric \(zero_point is false\).* from 9 to 9"):
        edited(folders, "awq", tmp_path / "b", add_to_fields(1))

    def without_order(config: dict, generation: dict, tensors: dict) -> None:
        for name in [name for name in tensors if name.endswith("g_idx")]:
            del tensors[name]

    with pytest.raises(LutlabError, match=r"\(desc_act\), and there is no g_idx"):
        edited(folders, "gptq", tmp_path / "c", without_order, desc_act=True)
    groups = json.loads((folders / "pack-quantized" / "config.json").read_text())
    groups = groups["quantization_config"]["config_groups"]
    for change, message in (
        ({"symmetric": False}, r"asymmetric \(symmetric is false\), and there is no weight_zero"),
        ({"actorder": "group"}, "weight_g_idx, of groups of reordered channels"),
        ({"dynamic": True}, "says dynamic=True"),
    ):
        said = {
            n: {**group, "weights": {**group["weights"], **change}} for n, group in groups.items()
        }
        with pytest.raises(LutlabError, match=message):
            edited(folders, "pack-quantized", tmp_path / message[:4], config_groups=said)


@pytest.mark.parametrize("name", [name for name, config in READERS.items() if config])
def test_keys_that_say_how_weights_were_found_change_nothing(
    name: str, folders: Path, tmp_path: Path
) -> None:
    method = {"gptq": "gptq", "bpdq": "gptq"}.get(name, name)
    neutral = {k: "x" if values is None else values[0] for k, values in NEUTRAL[method].items()}
    found = edited(folders, name, tmp_path / "x", **neutral, of_tomorrow=False)
    assert torch.equal(logits(found), logits(lutlab.load(folders / name)))


def test_every_key_of_the_libraries_is_in_the_table() -> None:
    """A new one in a release that we install is looked at before it is passed over."""
    written_by = {
        "gptq": theirs.GPTQConfig(bits=4).to_dict(),
        "awq": theirs.AwqConfig().to_dict(),
        "auto-round": theirs.AutoRoundConfig().to_dict(),
        "compressed-tensors": QuantizationConfig(config_groups={}).model_dump(),
    }
    for method, keys in written_by.items():
        asking = {key for key, value in keys.items() if value is not None}
        assert asking <= {*READ[method], *NEUTRAL[method]}, method
    assert QuantizationArgs().model_dump().keys() <= {*WEIGHTS_READ, *WEIGHTS_NEUTRAL}
