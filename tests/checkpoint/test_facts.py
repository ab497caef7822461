"""What files say is honoured or refused by name, whoever wrote them: contracts over all readers and writers.

The reference is transformers' own load of the dense folder with the same weights, changed in the same way.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig
from safetensors.torch import load_file, save_file
from tests.checkpoint import naive_layouts as naive
from tests.checkpoint.test_foreign import rewrite, written
from tests.models.architectures import randomized, token_ids
from tests.tiny_models import byte_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.utils import quantization_config as theirs

import lutlab
from lutlab.checkpoint.foreign import layout_of
from lutlab.checkpoint.keys import NEUTRAL, READ, WEIGHTS_NEUTRAL, WEIGHTS_READ
from lutlab.checkpoint.loading import load_mapped
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.errors import LutlabError
from lutlab.kept.files import write_sums
from lutlab.models import gguf
from lutlab.models.families import ends_of_text
from lutlab.models.load import fingerprint, load_model
from lutlab.specs import ModelSpec

CONFIG = {
    "vocab_size": 260, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
V1 = {"quant_method": "gptq", "checkpoint_format": "gptq", "bits": 4, "group_size": 32, "sym": True}
# Reader -> the quantization config of its folder; None: another place, or a writer of ours says it.
READERS: dict[str, dict[str, Any] | None] = {
    "own": None,
    "gptq": V1 | {"checkpoint_format": "gptq_v2"},
    "auto-round": {"quant_method": "auto-round", "packing_format": "auto_round", "sym": True},
    "efficientqat": None,
    "awq": {"quant_method": "awq", "version": "gemm", "zero_point": False, "group_size": 32},
    "pack-quantized": None,
    "int-quantized": None,
    "bpdq": naive.BPDQ | {"meta": {"bpdq": {"msbits": 3}}},
    "anybcq": None,
}
BINARY = ("bpdq", "anybcq")


def quantized(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = randomized(LlamaForCausalLM(LlamaConfig(**CONFIG)))
    if name in BINARY:
        return lutlab.quantize(model, "bcq", 3, 32, offset=True)
    bits = 3 if name == "efficientqat" else 4
    return lutlab.quantize(model, "rtn", bits, 32, symmetric=True)


def dense_of(model: PreTrainedModel) -> PreTrainedModel:
    """The same model of plain layers with the dequantized weights."""
    dense = LlamaForCausalLM(LlamaConfig(**CONFIG)).eval()
    state = {k: v for k, v in model.state_dict().items() if k in dense.state_dict()}
    layers = quantized_layers(model).items()
    state |= {f"{name}.weight": layer.packed.dequantize() for name, layer in layers}
    dense.load_state_dict(state)
    return dense


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each reader a folder, and `<reader>-dense` with the same weights."""
    root = tmp_path_factory.mktemp("readers")
    for name, config in READERS.items():
        model, folder = quantized(name), root / name
        if name == "own":
            lutlab.save(model, folder, byte_tokenizer())
        elif name.endswith("-quantized"):
            lutlab.export_compressed_tensors(model, folder, byte_tokenizer(), name)
        else:
            layout = {"efficientqat": "tens"}.get(name, name)
            written(model, folder, layout, config or {"quant_method": "-"})
        if name == "efficientqat":
            rewrite(folder, None)
        if name == "anybcq":
            said = {"seed_precision": 2, "parent_precision": 3, "group_size": 32}
            rewrite(folder, None, anybcq=said)
        dense_of(model).save_pretrained(root / f"{name}-dense")
        byte_tokenizer().save_pretrained(root / f"{name}-dense")
    return root


# ---- a folder whose config and tensors disagree ----

Change = Callable[[dict[str, Any], dict[str, Any], dict[str, torch.Tensor]], None]
LAYERS = [
    f"model.layers.{i}.{part}_proj"
    for i in range(2)
    for part in (*(f"self_attn.{p}" for p in "qkvo"), "mlp.gate", "mlp.up", "mlp.down")
]
ROWS = {"k_proj": 32, "v_proj": 32, "gate_proj": 96, "up_proj": 96}


def biases(value: float) -> Change:
    """A bias on every projection, of which the config says nothing."""

    def change(config: dict, generation: dict, tensors: dict) -> None:
        for name in LAYERS:
            rows = ROWS.get(name.rpartition(".")[2], 64)
            tensors[f"{name}.bias"] = torch.arange(rows).sub(20).mul(value)

    return change


def setting(**keys: Any) -> Change:
    """Keys of config.json."""
    return lambda config, generation, tensors: config.update(keys)


def generating(**keys: Any) -> Change:
    """Keys of generation_config.json."""
    return lambda config, generation, tensors: generation.update(keys)


def adding(name: str, like: str = "model.norm.weight") -> Change:
    """A tensor more."""

    def change(config: dict, generation: dict, tensors: dict) -> None:
        tensors[name] = tensors[like].clone()

    return change


def dropping(name: str) -> Change:
    return lambda config, generation, tensors: tensors.pop(name)


def casting(name: str, dtype: torch.dtype) -> Change:
    def change(config: dict, generation: dict, tensors: dict) -> None:
        tensors[name] = tensors[name].to(dtype)

    return change


def tied(equal: bool) -> Change:
    """A tied head that is in the file, too."""

    def change(config: dict, generation: dict, tensors: dict) -> None:
        config["tie_word_embeddings"] = True
        if equal:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    return change


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


def changed(source: Path, folder: Path, change: Change) -> Path:
    shutil.copytree(source, folder)
    paths = (folder / "config.json", folder / "generation_config.json")
    config, generation = (json.loads(path.read_text()) for path in paths)
    tensors = load_file(folder / "model.safetensors")
    change(config, generation, tensors)
    for path, values in zip(paths, (config, generation), strict=True):
        path.write_text(json.dumps(values))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_sums(folder)
    return folder


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


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(token_ids()).logits.float()


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


# ---- what the project that wrote it says of its weights ----


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


# ---- what was read is written and read again ----

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
    shutil.copy(folder / name, folder / "gptq_model-2bit-64g.safetensors")
    with pytest.raises(LutlabError, match=r"lacks model\.safetensors"):
        lutlab.load(folder)
