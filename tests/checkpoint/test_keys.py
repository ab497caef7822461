"""What a project's quantization config says of its weights: read, without effect, or refused by name."""

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig
from tests.base.refusals import refused
from tests.checkpoint import naive_layouts as naive
from tests.checkpoint.readers import V1, changed, config_of, read, rewrite, setting
from tests.models.architectures import logits
from transformers.utils import quantization_config as theirs

import lutlab
from lutlab.checkpoint.foreign.keys import NEUTRAL, READ, WEIGHTS_NEUTRAL, WEIGHTS_READ


def edited(folders, name, folder, tensors=None, **keys):
    """The model of a reader's folder with other keys in its quantization config, and other tensors."""
    changed(folders / name, folder, tensors or setting())
    rewrite(folder, config_of(folder) | keys)
    return lutlab.load(folder)


def add_to_fields(step, bits=4):
    """Every zero point as stored, plus a step."""
    ones = sum(1 << at for at in range(0, 32, bits))

    def change(config, generation, tensors):
        names = [name for name in tensors if name.endswith("qzeros")]
        tensors.update({name: tensors[name] + step * ones for name in names})

    return change


@pytest.mark.parametrize(("stated", "meta"), [
    ("gptq", ""), ("gptq", "gptqmodel:7.7.0"), ("", ""), ("gptq_v2", ""),
])  # fmt: skip
@pytest.mark.parametrize("step", [0, -1])
def test_symmetric_zero_points_are_the_middle(stated, meta, step, folders, tmp_path):
    """Fields of 8 under the format that stores one less, of 7 under the other: sym fixes z = 2^(q-1)."""
    keys = {"checkpoint_format": stated, "meta": {"quantizer": [meta]}}
    model = edited(folders, "gptq", tmp_path / "x", add_to_fields(step), **keys)
    assert torch.equal(logits(model), logits(lutlab.load(folders / "gptq")))


def test_of_eight_bits_too():
    codes = torch.randint(256, (32, 32), generator=torch.Generator().manual_seed(0)).tolist()
    tensors = naive.gptq(codes, [[128]] * 32, torch.ones(32, 1).half(), [0] * 32, 8)
    assert bool((read(V1 | {"bits": 8}, tensors, 32, 32).zero_point == 128).all())


def without_order(config, generation, tensors):
    for name in [name for name in tensors if name.endswith("g_idx")]:
        del tensors[name]


@pytest.mark.parametrize(("name", "change", "keys", "message"), [
    ("gptq", None, {"dynamic": {"+:x": {"sym": False}}, "checkpoint_format": "gptq"}, "all zero points are 9"),
    ("gptq", None, {"activation": "fp8"}, "says activation='fp8', which lutlab does not read"),
    ("gptq", None, {"rotation": "hadamard"}, "rotation='hadamard'"),
    ("gptq", None, {"dynamic": {"+:x": {"adapter": {"rank": 2}}}}, r"for \+:x says adapter="),
    ("auto-round", None, {"act_bits": 8}, "act_bits=8"),
    ("auto-round", None, {"data_type": "mx_fp"}, "data_type='mx_fp'"),
    ("auto-round", None, {"extra_config": {"lm_head": {"act_bits": 4}}}, "for lm_head says act_bits=4"),
    ("awq", None, {"of_tomorrow": 1}, "awq checkpoint's config says of_tomorrow=1"),
    # what the tensors deny
    ("gptq", add_to_fields(2), {}, "zero points are not all stored as 8 or all as 7"),
    ("awq", add_to_fields(1), {}, r"symmetric \(zero_point is false\).* from 9 to 9"),
    ("gptq", without_order, {"desc_act": True}, r"\(desc_act\), and there is no g_idx"),
])  # fmt: skip
def test_keys_that_change_numbers(name, change, keys, message, folders, tmp_path):
    refused(message, edited, folders, name, tmp_path / "x", change, **keys)


@pytest.mark.parametrize(("change", "message"), [
    ({"symmetric": False}, r"asymmetric \(symmetric is false\), and there is no weight_zero"),
    ({"actorder": "group"}, "weight_g_idx, of groups of reordered channels"),
    ({"dynamic": True}, "says dynamic=True"),
])  # fmt: skip
def test_of_compressed_tensors_too(change, message, folders, tmp_path):
    groups = config_of(folders / "pack-quantized")["config_groups"]
    for group in groups.values():
        group["weights"] |= change
    refused(message, edited, folders, "pack-quantized", tmp_path / "a", config_groups=groups)


@pytest.mark.parametrize("name", ["gptq", "auto-round", "awq", "bpdq"])
def test_keys_that_say_how_weights_were_found_change_nothing(name, folders, tmp_path):
    method = "gptq" if name == "bpdq" else name
    neutral = {k: "x" if values is None else values[0] for k, values in NEUTRAL[method].items()}
    model = edited(folders, name, tmp_path / "x", **neutral, of_tomorrow=False)
    assert torch.equal(logits(model), logits(lutlab.load(folders / name)))


def test_every_key_of_the_libraries_is_in_the_table():
    """A new one in a release that we install is looked at before it is passed over."""
    written_by = {
        "gptq": theirs.GPTQConfig(bits=4).to_dict(),
        "awq": theirs.AwqConfig().to_dict(),
        "auto-round": theirs.AutoRoundConfig().to_dict(),
        "compressed-tensors": QuantizationConfig(config_groups={}).model_dump(),
    }
    for method, config in written_by.items():
        keys = {key for key, value in config.items() if value is not None}
        assert keys <= {*READ[method], *NEUTRAL[method]}, method
    assert QuantizationArgs().model_dump().keys() <= {*WEIGHTS_READ, *WEIGHTS_NEUTRAL}
