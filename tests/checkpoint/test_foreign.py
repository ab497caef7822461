"""What others quantized is read to the last bit: naive writers, the library compressed-tensors, GPTQModel itself."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.checkpoint import naive_layouts as naive
from tests.checkpoint.test_gptq import model as quantized
from tests.checkpoint.test_gptq import plain
from tests.models.architectures import make, token_ids
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.groups import group_length
from lutlab.base.kept.files import write_sums
from lutlab.base.specs import ModelSpec
from lutlab.checkpoint.foreign.gptq import export_gptq
from lutlab.checkpoint.foreign.reading import layout_of
from lutlab.checkpoint.saving import save_as
from lutlab.checkpoint.stored import formats_of, row_width
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.formats import pack
from lutlab.models.families import weight_of
from lutlab.models.load import load_model

V2 = {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}
V1 = {"quant_method": "gptq", "checkpoint_format": "gptq"}
GPTQMODEL = V1 | {"meta": {"quantizer": ["gptqmodel:7.7.0"]}}
OWN = {"quant_method": "auto-round", "packing_format": "auto_round:triton"}
AWQ = {"quant_method": "awq", "version": "GEMM"}
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


def read(config, tensors, rows, columns):
    return pack(layout_of(config).read(tensors, rows, columns))


SHAPES = {
    "q": st.sampled_from([2, 3, 4, 8]),
    "rows": st.sampled_from([32, 64]),
    "columns": st.sampled_from([32, 96, 160]),
    "g": st.sampled_from([32, -1]),
    "seed": st.integers(0, 2**31),
}


@given(
    **SHAPES,
    written=st.sampled_from([("v2", V2, 0), ("v2", OWN, 0), ("v1", V1, 1), ("gptqmodel", GPTQMODEL, 0)]),
    act_order=st.booleans(),
    g_idx=st.booleans(),
)  # fmt: skip
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
    q=st.integers(2, 8),
    strategy=st.sampled_from(["group", "channel", "tensor"]),
    columns=st.sampled_from([32, 96]),
    symmetric=st.booleans(),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    format=st.sampled_from(["pack-quantized", "int-quantized"]),
    seed=st.integers(0, 2**31),
)
def test_compressed_tensors_as_the_library_decompresses_them(
    q, strategy, columns, symmetric, dtype, format, seed
):
    rows, g = 24, 32 if strategy == "group" else -1
    *_, scales, _, weight = drawn(q, rows, columns, g, seed, dtype=dtype)
    if strategy == "tensor":
        scales, symmetric = scales[:1, 0], True
    args = {"num_bits": q, "type": "int", "symmetric": symmetric, "dynamic": False}
    args |= {"strategy": strategy} | ({"group_size": g} if strategy == "group" else {})
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=format)
    state = {"weight": weight, "weight_scale": scales}
    if not symmetric:
        half, generator = 2 ** (q - 1), torch.Generator().manual_seed(seed)
        state["weight_zero_point"] = torch.randint(
            -half, half, scales.shape, generator=generator
        ).to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(format)
    stored = compressor.compress(state, scheme)
    expected = compressor.decompress(dict(stored), scheme)["weight"]
    config = {"quant_method": "compressed-tensors", "format": format}
    config["config_groups"] = {"group_0": scheme.model_dump(mode="json")}
    packed = read(config, stored, rows, columns)
    assert torch.equal(packed.dequantize().to(dtype), expected)
    assert packed.bits == q


def test_symmetric_autoround_by_its_constant_whatever_the_key_says():
    for packing, written in (("auto_round", "v1"), ("auto_round:auto_gptq", "v2")):
        codes, _, scales, group, _ = drawn(4, 32, 64, 32, seed=0)
        tensors = naive.gptq(codes, [[8, 8]] * 32, scales, group, 4, written)
        config = {"quant_method": "auto-round", "packing_format": packing, "sym": True, "bits": 4}
        assert bool((read(config, tensors, 32, 64).zero_point == 8).all())
        tensors["qzeros"][0, 0] ^= 1
        with pytest.raises(LutlabError, match="zero points are not all stored as 8 or all as 7"):
            read(config, tensors, 32, 64)


CT = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (V1 | {"checkpoint_format": "gptq_p"}, "planar layout.*format gptq_v2"),
        (V1 | {"checkpoint_format": "marlin"}, "'marlin' is another layout"),
        (AWQ | {"version": "gemv_fast"}, "version 'gemv_fast' has another layout"),
        (AWQ | {"backend": "llm-awq"}, "version 'llm-awq'"),
        (CT | {"format": "nvfp4-pack-quantized"}, "nvfp4-pack-quantized .*is not read"),
        (CT | {"kv_cache_scheme": {"num_bits": 8}}, "cache of keys and values"),
        (
            {"quant_method": "bitsandbytes"},
            "'bitsandbytes' is not read.*gptq, bpdq, awq, auto-round",
        ),
    ],
)
def test_layouts_that_are_not_read_are_named(config, message):
    with pytest.raises(LutlabError, match=message):
        layout_of(config)


def test_zero_points_that_readers_disagree_on():
    """A v1 field of all ones is 0 to some and 2^q to others; of GPTQModel's own files it is known."""
    codes, zeros, scales, group, _ = drawn(4, 32, 64, 32, seed=0)
    zeros[5][1] = 0
    tensors = naive.gptq(codes, zeros, scales, group, 4, "gptqmodel")
    assert read(GPTQMODEL, tensors, 32, 64).zero_point.tolist() == zeros
    with pytest.raises(LutlabError, match=r"stored as 15, which in format gptq \(v1\) is 0"):
        read(V1, tensors, 32, 64)
    with pytest.raises(LutlabError, match=r"g_idx does not share K = 64 channels out into groups"):
        read(V2, tensors | {"g_idx": torch.zeros(64, dtype=torch.int32)}, 32, 64)
    with pytest.raises(LutlabError, match=r"weight_g_idx, of groups of reordered channels"):
        read(CT, stored_of_ones() | {"weight_g_idx": torch.zeros(32)}, 8, 32)


def stored_of_ones():
    words = {"weight_packed": torch.ones(8, 4, dtype=torch.int32)}
    return words | {"weight_scale": torch.ones(8, 1), "weight_shape": torch.tensor([8, 32])}


# ---- folders ----


def written(ours, folder, layout, config):
    """A model of ours in another project's layout."""
    tensors = {}
    for name, layer in quantized_layers(ours).items():
        one = layer.packed.unpack()
        if layout in ("bpdq", "anybcq"):
            tensors[name] = naive.binary(layout, one)
            continue
        codes, zeros, q = one.codes.tolist(), one.zero_point.tolist(), one.bits
        if layout == "awq":
            tensors[name] = naive.awq(codes, zeros, one.scale, q)
        else:
            group = [k // group_length(one.group_size, len(codes[0])) for k in range(len(codes[0]))]
            tensors[name] = naive.gptq(codes, zeros, one.scale, group, q, ten=layout == "tens")
    save_as(ours, folder, byte_tokenizer(), config, tensors)


def rewrite(folder, quantization, **others):
    """Another quantization_config in config.json; None: none. Others are other keys."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.pop("quantization_config", None)
    config |= others
    if quantization is not None:
        config["quantization_config"] = quantization
    path.write_text(json.dumps(config))
    write_sums(folder)


def shard(folder):
    """The weights in two files, qweight apart from all else, and their index."""
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {name: f"model-{1 + name.endswith('qweight')}.safetensors" for name in whole}
    for file in set(index.values()):
        some = {name: whole[name] for name in whole if index[name] == file}
        save_file(some, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    write_sums(folder)


@pytest.mark.parametrize("layout", ["v2", "tens", "awq", "bpdq", "anybcq"])
def test_a_folder_gives_the_logits_of_its_dequantized_weights(layout, tmp_path):
    model, q, config = {
        "v2": (make("opt"), 4, V2 | {"bits": 4}),  # with biases
        "tens": (plain(), 3, {"quant_method": "-"}),
        "awq": (make("gpt2"), 4, AWQ),  # Conv1D
        "bpdq": (plain(), 3, naive.BPDQ | {"meta": {"bpdq": {"msbits": 3}}}),
        "anybcq": (plain(), 3, {"quant_method": "-"}),
    }[layout]
    binary = layout in ("bpdq", "anybcq")
    method, g, options = ("bcq", 32, {"offset": True}) if binary else ("rtn", 16, {})
    ours, folder = lutlab.quantize(model, method, q, g, **options), tmp_path / layout
    written(ours, folder, layout, config)
    if layout == "tens":
        rewrite(folder, None)  # as EfficientQAT writes it
    if layout == "awq":
        rewrite(folder, None)
        (folder / "quant_config.json").write_text('{"w_bit": 4, "q_group_size": 16}')
        shard(folder)
    if layout == "anybcq":
        rewrite(folder, None, anybcq={"seed_precision": 2, "parent_precision": 3, "group_size": g})
    spec = ModelSpec(layout, "folder", str(folder))
    assert row_width(spec) == (q, g)
    assert formats_of(spec) == ("bcq" if binary else "uniform",)
    loaded = lutlab.load(folder)
    reference = lutlab.load(folder)
    for name, layer in quantized_layers(loaded).items():
        dense = torch.nn.Linear(layer.in_features, layer.out_features)
        dense.bias = layer.bias
        dense.weight = torch.nn.Parameter(layer.packed.dequantize(), requires_grad=False)
        reference.set_submodule(name, dense)
        assert torch.equal(weight_of(dense), ours.get_submodule(name).packed.dequantize()), name
    with torch.no_grad():
        torch.testing.assert_close(loaded(token_ids()).logits, reference(token_ids()).logits)
    lutlab.save(loaded, tmp_path / "again")
    with torch.no_grad():
        again = lutlab.load(tmp_path / "again")(token_ids()).logits
        assert torch.equal(again, loaded(token_ids()).logits)
    assert "anybcq" not in json.loads((tmp_path / "again" / "config.json").read_text())


def test_folders_that_say_too_little(tmp_path):
    ours = quantized(q=4, g=32)
    export_gptq(ours, tmp_path / "out", byte_tokenizer())
    with pytest.raises(LutlabError, match=r"quantized already .*: method=stored measures them"):
        load_model(ModelSpec("m", "folder", str(tmp_path / "out")), torch.float32, "cpu", 0)
    rewrite(tmp_path / "out", None)
    with pytest.raises(LutlabError, match="no file says what their zero points mean: add to"):
        lutlab.load(tmp_path / "out")
    rewrite(tmp_path / "out", AWQ)
    with pytest.raises(LutlabError, match=r"layer model\.layers\.0.*not of AWQ's gemm layout"):
        lutlab.load(tmp_path / "out")
    rewrite(tmp_path / "out", V2)
    weights = load_file(tmp_path / "out" / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.qzeros"]
    save_file(weights, tmp_path / "out" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LutlabError, match=r"model\.safetensors is not the file that SHA256SUMS"):
        lutlab.load(tmp_path / "out")
    write_sums(tmp_path / "out")
    spec = ModelSpec("out", "folder", str(tmp_path / "out"))
    for read_it in (lambda: lutlab.load(tmp_path / "out"), lambda: row_width(spec)):
        with pytest.raises(LutlabError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.qzeros"):
            read_it()


def test_a_stored_model_is_a_row(command, tmp_path):
    """A foreign folder and our own, under the q and g that they hold; nothing is quantized again."""
    ours = quantized(q=4, g=32)
    export_gptq(ours, tmp_path / "gptq", byte_tokenizer())
    lutlab.save(ours, tmp_path / "own", byte_tokenizer())
    row = (
        "model=folder", f"model.id={tmp_path / 'gptq'},{tmp_path / 'own'}", "method=stored", "q=2", "logger=none",
        "data.limit=1", "evaluate=[ppl:docstrings,model_size,weight_error]",
    )  # fmt: skip
    done = command(*row)
    assert done.code == 0, done.err
    assert "does not hold the weights in full precision" in " ".join(done.out.split())
    runs = [(r["run"]["model"]["name"], r["run"]["q"], r["run"]["g"]) for r in records(command)]
    assert sorted(runs) == [("gptq", 4, 32)] * 2 + [("own", 4, 32)] * 2
    found = {name for r in records(command) for name in r["values"].items()}
    assert dict(found)["bits_per_weight"] == pytest.approx(4.625)
    assert len(found) == len(dict(found)), "the two folders measure the same"
    methods = {r["facts"]["stored_as"]["quant_method"] for r in records(command)}
    assert methods == {"gptq", "lutlab"}
    refused = command(*row, "stream=true")
    assert refused.code == 2
    assert "drop stream=true" in refused.err


def records(command):
    return command.records().values()


def test_a_row_is_called_by_the_mean_width(tmp_path):
    """Of config.json and headers alone, the same as lutlab saved it and as compressed-tensors has it."""
    ours = lutlab.quantize(plain(), "rtn", 4, 32, layers={"*.0.mlp.up_proj": (2, 16)})
    lutlab.save(ours, tmp_path / "own")
    lutlab.export_compressed_tensors(ours, tmp_path / "theirs")
    weights = [one.out_features * one.in_features for one in quantized_layers(ours).values()]
    mean = round(4 - 2 * 64 * 96 / sum(weights), 3)  # up_proj's are 2 bits narrower
    for name in ("own", "theirs"):
        assert row_width(ModelSpec(name, "folder", str(tmp_path / name))) == (mean, 32)
    groups = lutlab.quantize(plain(), "mixed_2_4_16", 2.5, 16, calibration=token_ids())
    lutlab.save(groups, tmp_path / "groups")
    q, g = row_width(ModelSpec("groups", "folder", str(tmp_path / "groups")))
    # Of 6 groups a quarter has 4 bits, in whole groups.
    assert (q, g) == (pytest.approx(2.5, abs=0.05), 16)


# ---- GPTQModel, in its own environment ----


@pytest.mark.skipif(
    "LUTLAB_GPTQMODEL_PYTHON" not in os.environ,
    reason="LUTLAB_GPTQMODEL_PYTHON names no Python with gptqmodel",
)
def test_gptqmodel_dequantizes_to_the_same_bits(tmp_path):
    """Its module for GPTQ (v1 and v2) and its function for AWQ, on what the naive writers write, both read by both."""
    tensors, cases = {}, {}
    for q in (2, 3, 4, 8):
        for g in (32, -1):
            for layout in ("v2", "gptqmodel", "order", "awq"):
                name = f"{layout}-{q}-{g}"
                cases[name] = {"layout": layout, "q": q, "g": g, "rows": 64, "columns": 96}
                *parts, _ = drawn(q, 64, 96, g, seed=q, act_order=layout == "order")
                if layout == "awq":
                    made = naive.awq(parts[0], parts[1], parts[2], q)
                else:
                    how = "gptqmodel" if layout == "gptqmodel" else "v2"
                    made = naive.gptq(*parts, q, how)
                tensors |= {f"{name}.{key}": tensor for key, tensor in made.items()}
    save_file(tensors, tmp_path / "in.safetensors")
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    python = os.environ["LUTLAB_GPTQMODEL_PYTHON"]
    subprocess.run([python, SCRIPT, tmp_path], check=True)
    theirs = load_file(tmp_path / "out.safetensors")
    configs = {"v2": V2, "order": V2, "gptqmodel": GPTQMODEL, "awq": AWQ}
    for name, case in cases.items():
        stored = {
            key.removeprefix(f"{name}."): tensor
            for key, tensor in tensors.items()
            if key.startswith(f"{name}.")
        }
        config = configs[case["layout"]] | {"bits": case["q"], "group_size": case["g"]}
        packed = read(config, stored, case["rows"], case["columns"])
        assert theirs[name].dtype == torch.float16
        assert torch.equal(packed.dequantize().half(), theirs[name].T), name
