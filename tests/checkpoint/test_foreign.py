"""What others quantized is read to the last bit: naive writers, the library compressed-tensors, GPTQModel itself."""

import itertools
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.base.refusals import refused
from tests.checkpoint import naive_layouts as naive
from tests.checkpoint.readers import NOWHERE, plain, read, rewrite, tensors_of, written
from tests.models.architectures import dequantized, logits, make, token_ids
from tests.models.folders import change_tensors, loaded, spec, write_shards
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab.base.groups import group_length
from lutlab.base.kept.files import write_sums
from lutlab.checkpoint.foreign.reading import layout_of
from lutlab.checkpoint.stored import formats_of, row_width
from lutlab.checkpoint.transformers import quantized_layers

V2 = {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}
V1 = {"quant_method": "gptq", "checkpoint_format": "gptq"}
GPTQMODEL = V1 | {"meta": {"quantizer": ["gptqmodel:7.7.0"]}}
OWN = {"quant_method": "auto-round", "packing_format": "auto_round:triton"}
AWQ = {"quant_method": "awq", "version": "GEMM"}
PYTHON = "LUTLAB_GPTQMODEL_PYTHON"
SCRIPT = Path(__file__).parent / "gptqmodel_reader.py"


def drawn(q, rows, columns, g, seed, low=0, act_order=False, dtype=torch.float16):
    """Codes, zeros (from `low` on), scales, the group of each channel, and W in the dtype's own product."""
    generator = torch.Generator().manual_seed(seed)
    length = group_length(g, columns)
    groups = -(-columns // length)
    codes = torch.randint(0, 2**q, (rows, columns), generator=generator)
    zeros = torch.randint(low, 2**q, (rows, groups), generator=generator)
    scales = (torch.rand(rows, groups, generator=generator) + 2**-9).to(dtype)
    group = torch.arange(columns) // length
    if act_order:
        group = group[torch.randperm(columns, generator=generator)]
    weight = scales[:, group] * (codes - zeros[:, group]).to(dtype)
    return codes.tolist(), zeros.tolist(), scales, group.tolist(), weight


SHAPES = {
    "q": st.sampled_from([2, 3, 4, 8]), "rows": st.sampled_from([32, 64]), "columns": st.sampled_from([32, 96, 160]),
    "g": st.sampled_from([32, -1]), "seed": st.integers(0, 2**31),
}  # fmt: skip


@given(
    **SHAPES, act_order=st.booleans(), g_idx=st.booleans(),
    written=st.sampled_from([("v2", V2, 0), ("v2", OWN, 0), ("v1", V1, 1), ("gptqmodel", GPTQMODEL, 0)]),
)  # fmt: skip
@example(3, 32, 96, 32, 0, ("gptqmodel", GPTQMODEL, 0), True, True)  # by fields, not by words
def test_gptq(q, rows, columns, g, seed, written, act_order, g_idx):
    how, config, low = written
    *parts, weight = drawn(q, rows, columns, g, seed, low, act_order)
    tensors = naive.gptq(*parts, q, how)
    if not (act_order or g_idx):
        del tensors["g_idx"]
    packed = read(config | {"bits": q, "group_size": g}, tensors, rows, columns)
    assert torch.equal(packed.dequantize().half(), weight)
    assert (packed.order is None) == (parts[3] == sorted(parts[3]))


@settings(max_examples=15)
@given(**SHAPES | {"q": st.just(3)}, act_order=st.booleans())
def test_efficientqat_of_3_bits(q, rows, columns, g, seed, act_order):
    *parts, weight = drawn(q, rows, columns, g, seed, act_order=act_order)
    tensors = naive.gptq(*parts, q, ten=True)
    packed = read(V2 | {"bits": 3, "group_size": g}, tensors, rows, columns)
    assert torch.equal(packed.dequantize().half(), weight)


@settings(max_examples=20)
@given(**SHAPES)
def test_awq(q, rows, columns, g, seed):
    codes, zeros, scales, _, weight = drawn(q, rows, columns, g, seed)
    packed = read(AWQ | {"group_size": g}, naive.awq(codes, zeros, scales, q), rows, columns)
    assert torch.equal(packed.dequantize().half(), weight)


@settings(max_examples=20)
@given(
    q=st.integers(2, 8), strategy=st.sampled_from(["group", "channel", "tensor"]), columns=st.sampled_from([32, 96]),
    symmetric=st.booleans(), dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    layout=st.sampled_from(["pack-quantized", "int-quantized"]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_compressed_tensors(q, strategy, columns, symmetric, dtype, layout, seed):
    """As the library decompresses them."""
    rows, g = 24, 32 if strategy == "group" else -1
    *_, scales, _, weight = drawn(q, rows, columns, g, seed, dtype=dtype)
    if strategy == "tensor":
        scales, symmetric = scales[:1, 0], True
    args = {"num_bits": q, "type": "int", "symmetric": symmetric, "dynamic": False}
    args |= {"strategy": strategy} | ({"group_size": g} if strategy == "group" else {})
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=layout)
    state = {"weight": weight, "weight_scale": scales}
    if not symmetric:
        half, generator = 2 ** (q - 1), torch.Generator().manual_seed(seed)
        zeros = torch.randint(-half, half, scales.shape, generator=generator)
        state["weight_zero_point"] = zeros.to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(layout)
    stored = compressor.compress(state, scheme)
    expected = compressor.decompress(dict(stored), scheme)["weight"]
    groups = {"group_0": scheme.model_dump(mode="json")}
    config = {"quant_method": "compressed-tensors", "format": layout, "config_groups": groups}
    packed = read(config, stored, rows, columns)
    assert torch.equal(packed.dequantize().to(dtype), expected)
    assert packed.bits == q


def test_symmetric_autoround_by_its_constant_whatever_the_key_says():
    for packing, how in (("auto_round", "v1"), ("auto_round:auto_gptq", "v2")):
        codes, _, scales, group, _ = drawn(4, 32, 64, 32, seed=0)
        tensors = naive.gptq(codes, [[8, 8]] * 32, scales, group, 4, how)
        config = {"quant_method": "auto-round", "packing_format": packing, "sym": True, "bits": 4}
        assert bool((read(config, tensors, 32, 64).zero_point == 8).all())
        tensors["qzeros"][0, 0] ^= 1
        refused("zero points are not all stored as 8 or all as 7", read, config, tensors, 32, 64)


CT = {
    "quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
}  # fmt: skip


@pytest.mark.parametrize(("config", "message"), [
    (V1 | {"checkpoint_format": "gptq_p"}, "planar layout.*format gptq_v2"),
    (V1 | {"checkpoint_format": "marlin"}, "'marlin' is another layout"),
    (AWQ | {"version": "gemv_fast"}, "version 'gemv_fast' has another layout"),
    (AWQ | {"backend": "llm-awq"}, "version 'llm-awq'"),
    (CT | {"format": "nvfp4-pack-quantized"}, "nvfp4-pack-quantized .*is not read"),
    (CT | {"kv_cache_scheme": {"num_bits": 8}}, "cache of keys and values"),
    ({"quant_method": "bitsandbytes"}, "'bitsandbytes' is not read.*gptq, bpdq, awq, auto-round"),
])  # fmt: skip
def test_layouts_that_are_not_read_are_named(config, message):
    refused(message, layout_of, config)


def test_zero_points_that_readers_disagree_on():
    """A v1 field of all ones is 0 to some and 2^q to others; of GPTQModel's own files it is known."""
    codes, zeros, scales, group, _ = drawn(4, 32, 64, 32, seed=0)
    zeros[5][1] = 0
    tensors = naive.gptq(codes, zeros, scales, group, 4, "gptqmodel")
    assert read(GPTQMODEL, tensors, 32, 64).zero_point.tolist() == zeros
    refused(r"stored as 15, which in format gptq \(v1\) is 0", read, V1, tensors, 32, 64)
    tensors["g_idx"] = torch.zeros(64, dtype=torch.int32)
    refused("g_idx does not share K = 64 channels out into groups", read, V2, tensors, 32, 64)
    tensors = {"weight_packed": torch.ones(8, 4).int(), "weight_g_idx": torch.zeros(32)}
    tensors |= {"weight_scale": torch.ones(8, 1), "weight_shape": torch.tensor([8, 32])}
    refused("weight_g_idx, of groups of reordered channels", read, CT, tensors, 8, 32)


@pytest.mark.parametrize(("layout", "name", "config"), [
    ("v2", "opt", V2 | {"bits": 4}),  # with biases
    ("tens", "", NOWHERE),
    ("awq", "gpt2", AWQ),  # Conv1D
    ("bpdq", "", naive.BPDQ | {"meta": {"bpdq": {"msbits": 3}}}),
    ("anybcq", "", NOWHERE),
])  # fmt: skip
def test_a_folder_gives_the_logits_of_its_dequantized_weights(layout, name, config, tmp_path):
    binary, q, folder = layout in naive.BINARY, 4 if name else 3, tmp_path / layout
    method, g, options = ("bcq", 32, {"offset": True}) if binary else ("rtn", 16, {})
    ours = lutlab.quantize(make(name) if name else plain(), method, q, g, **options)
    written(ours, folder, layout, config)
    if layout == "awq":
        rewrite(folder, None)
        (folder / "quant_config.json").write_text('{"w_bit": 4, "q_group_size": 16}')
        weights = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        write_shards(folder, weights, [name.endswith("qweight") for name in weights])
        write_sums(folder)
    assert row_width(spec(folder)) == (q, g)
    assert formats_of(spec(folder)) == ("bcq" if binary else "uniform",)
    back = lutlab.load(folder)
    for path, layer in quantized_layers(back).items():
        weight = ours.get_submodule(path).packed.dequantize()
        assert torch.equal(layer.packed.dequantize(), weight), path
    torch.testing.assert_close(logits(back), logits(dequantized(back)))
    lutlab.save(back, tmp_path / "again")
    assert torch.equal(logits(lutlab.load(tmp_path / "again")), logits(back))
    assert "anybcq" not in json.loads((tmp_path / "again" / "config.json").read_text())


def test_folders_that_say_too_little(tmp_path):
    folder = tmp_path / "out"
    lutlab.export_gptq(lutlab.quantize(plain(), "rtn", 4, 32), folder, byte_tokenizer())
    refused("quantized already .*: method=stored measures them", loaded, folder)
    rewrite(folder, None)
    refused("no file says what their zero points mean: add to", lutlab.load, folder)
    rewrite(folder, AWQ)
    refused(r"layer model\.layers\.0.*not of AWQ's gemm layout", lutlab.load, folder)
    rewrite(folder, V2)
    lacking = "model.layers.1.mlp.up_proj.qzeros"
    change_tensors(folder, lambda tensors: tensors.pop(lacking))
    refused(r"model\.safetensors is not the file that SHA256SUMS", lutlab.load, folder)
    write_sums(folder)
    refused(f"lacks {lacking}", lutlab.load, folder)
    refused(f"lacks {lacking}", row_width, spec(folder))


def test_a_stored_model_is_a_row(command, tmp_path):
    """A foreign folder and our own, under the q and g that they hold; nothing is quantized again."""
    ours = lutlab.quantize(plain(), "rtn", 4, 32)
    lutlab.export_gptq(ours, tmp_path / "gptq", byte_tokenizer())
    lutlab.save(ours, tmp_path / "own", byte_tokenizer())
    row = (
        "model=folder", f"model.id={tmp_path / 'gptq'},{tmp_path / 'own'}", "method=stored", "q=2", "logger=none",
        "data.limit=1", "evaluate=[ppl:docstrings,model_size,weight_error]",
    )  # fmt: skip
    done = command(*row)
    assert done.code == 0, done.err
    assert "does not hold the weights in full precision" in " ".join(done.out.split())
    records = command.records().values()
    runs = [(r["run"]["model"]["name"], r["run"]["q"], r["run"]["g"]) for r in records]
    assert sorted(runs) == [("gptq", 4, 32)] * 2 + [("own", 4, 32)] * 2
    values = {value for record in records for value in record["values"].items()}
    assert dict(values)["bits_per_weight"] == pytest.approx(4.625)
    assert len(values) == len(dict(values)), "the two folders measure the same"
    assert {r["facts"]["stored_as"]["quant_method"] for r in records} == {"gptq", "lutlab"}
    refusal = command(*row, "stream=true")
    assert refusal.code == 2
    assert "drop stream=true" in refusal.err


def test_a_row_is_called_by_the_mean_width(tmp_path):
    """Of config.json and headers alone, the same as lutlab saved it and as compressed-tensors has it."""
    ours = lutlab.quantize(plain(), "rtn", 4, 32, layers={"*.0.mlp.up_proj": (2, 16)})
    lutlab.save(ours, tmp_path / "own")
    lutlab.export_compressed_tensors(ours, tmp_path / "theirs")
    weights = [x.out_features * x.in_features for x in quantized_layers(ours).values()]
    mean = round(4 - 2 * 64 * 96 / sum(weights), 3)  # up_proj's are 2 bits narrower
    for name in ("own", "theirs"):
        assert row_width(spec(tmp_path / name)) == (mean, 32)
    groups = lutlab.quantize(plain(), "mixed_2_4_16", 2.5, 16, calibration=token_ids())
    lutlab.save(groups, tmp_path / "groups")
    # Of 6 groups a quarter has 4 bits, in whole groups.
    assert row_width(spec(tmp_path / "groups")) == (pytest.approx(2.5, abs=0.05), 16)


@pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} names no Python with gptqmodel")
def test_gptqmodel_dequantizes_to_the_same_bits(tmp_path):
    """Its module for GPTQ (v1 and v2) and its function for AWQ, on what the naive writers write, both read by both."""
    tensors, cases = {}, {}
    layouts = ("v2", "gptqmodel", "order", "awq")
    for q, g, layout in itertools.product((2, 3, 4, 8), (32, -1), layouts):
        name = f"{layout}-{q}-{g}"
        cases[name] = {"layout": layout, "q": q, "g": g, "rows": 64, "columns": 96}
        *parts, _ = drawn(q, 64, 96, g, seed=q, act_order=layout == "order")
        if layout == "awq":
            stored = naive.awq(*parts[:3], q)
        else:
            stored = naive.gptq(*parts, q, "gptqmodel" if layout == "gptqmodel" else "v2")
        tensors |= {f"{name}.{key}": tensor for key, tensor in stored.items()}
    save_file(tensors, tmp_path / "in.safetensors")
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    subprocess.run([os.environ[PYTHON], SCRIPT, tmp_path], check=True)
    theirs = load_file(tmp_path / "out.safetensors")
    configs = {"v2": V2, "order": V2, "gptqmodel": GPTQMODEL, "awq": AWQ}
    for name, case in cases.items():
        config = configs[case["layout"]] | {"bits": case["q"], "group_size": case["g"]}
        packed = read(config, tensors_of(tensors, name), case["rows"], case["columns"])
        assert theirs[name].dtype == torch.float16
        assert torch.equal(packed.dequantize().half(), theirs[name].T), name
