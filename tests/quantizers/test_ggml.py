"""llama.cpp's types: what is stored is a GGUF file's, byte for byte; fall-backs; and what is refused, and how."""

import ctypes
import importlib.metadata
import importlib.util

import pytest
import torch
from tests.models.architectures import uniform
from tests.quantizers.weights import drawn, stats_of
from tests.tiny_models import RUN, tiny_llama
from transformers import LlamaForCausalLM

import gguf
import lutlab
from lutlab.base import ggml
from lutlab.base.errors import LutlabError
from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec, Subject
from lutlab.base.tensors import CalibStats
from lutlab.compress.driver import quantize_model
from lutlab.compress.sizes import stored_bits
from lutlab.evaluators.model_size import ModelSize
from lutlab.experiment.plan.ids import Resolved, cell_identity
from lutlab.formats.ggml import PackedBlocks
from lutlab.quantizers.contract import make_method
from lutlab.quantizers.ggml import FALLBACKS, NEED_IMPORTANCE

here = pytest.mark.skipif(bool(ggml.lacking()), reason="llama-cpp-python is not installed")
# Bits a weight of a block, scales included, as ggml-common.h's static_asserts say.
BITS = {
    "IQ1_S": 1.5625, "IQ1_M": 1.75, "IQ2_XXS": 2.0625, "IQ2_XS": 2.3125, "IQ2_S": 2.5625, "Q2_K": 2.625,
    "IQ3_XXS": 3.0625, "IQ3_S": 3.4375, "Q3_K": 3.4375, "IQ4_XS": 4.25, "IQ4_NL": 4.5, "Q4_0": 4.5, "Q4_1": 5,
    "Q4_K": 4.5, "Q5_0": 5.5, "Q5_1": 6, "Q5_K": 5.5, "Q6_K": 6.5625, "Q8_0": 8.5,
}  # fmt: skip
WEIGHT = drawn(8, 512)


def stats(loudest=0):
    """Inputs of which every 32nd from `loudest` on is 10 times as large as the others."""
    squares = torch.ones(512)
    squares[loudest::32] = 100.0
    return stats_of(torch.diag(squares))


def packed(kind, prepared=None):
    method = make_method("ggml" if prepared is None else "ggml_imatrix", type=kind)
    more = () if prepared is None else (method.prepare(prepared),)
    return PackedBlocks.pack(method.quantize(WEIGHT, 4, 32, *more))


@here  # each kind of block
@pytest.mark.parametrize("kind", ["Q2_K", "Q4_0", "Q6_K", "IQ2_XXS", "IQ3_S", "IQ4_XS"])
def test_a_type_stores_its_bits_and_comes_near(kind):
    ours = packed(kind, stats())
    assert (ours.type, ours.bits_per_weight) == (kind, BITS[kind])
    theirs = gguf.quants.dequantize(ours.blocks.numpy(), gguf.GGMLQuantizationType[kind])
    assert torch.equal(ours.dequantize(), torch.from_numpy(theirs))
    # The least that b bits of a normal variable can err by is 4^-b of its square.
    error = (ours.dequantize() - WEIGHT).norm() ** 2 / WEIGHT.norm() ** 2
    assert 4.0 ** -BITS[kind] < error < 8 * 4.0 ** -BITS[kind]


def test_sizes_follow_from_shapes_without_the_library():
    for kind, bits in BITS.items():
        assert stored_bits(make_method("ggml_imatrix", type=kind), 4, 32, 8, 512) == bits * 8 * 512


@here
@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q8_0"])
def test_blocks_are_those_of_ggufs_own_quantizer(kind):
    """Of the types without a search, gguf has a second one, in NumPy."""
    theirs = gguf.quants.quantize(WEIGHT.numpy(), gguf.GGMLQuantizationType[kind])
    assert torch.equal(packed(kind).blocks, torch.from_numpy(theirs))


@here
@pytest.mark.parametrize("kind", ["Q2_K", "Q4_0", "IQ4_NL"])
def test_importance_moves_the_error_to_columns_that_matter_less(kind):
    both = [stats(loudest) for loudest in (0, 16)]
    errors = [(packed(kind, each).dequantize() - WEIGHT).square().sum(0) for each in both]
    for at, other in ((0, 1), (1, 0)):
        h = both[at].hessian.diagonal()
        assert h @ errors[at] < 0.9 * (h @ errors[other])


@here
def test_threads_and_widths_of_a_row_change_nothing(on_threads):
    w, method = drawn(700, 512), make_method("ggml", type="Q3_K")
    alone = on_threads(1, lambda: method.quantize(w, 3, 16).blocks)
    assert torch.equal(on_threads(3, lambda: method.quantize(w, 8, -1).blocks), alone)


@here
def test_the_library_requires_importance_where_we_say_so(monkeypatch):
    """It would end the process; llama-quantize refuses three types more."""
    name = "quantize_requires_imatrix"
    monkeypatch.setitem(ggml.FUNCTIONS, name, ("base", ctypes.c_bool, [ctypes.c_int]))
    requires = ggml.function(name)
    named = [kind for kind in BITS if requires(ggml.number_of(kind))]
    assert named == ["IQ1_S", "IQ2_XXS", "IQ2_XS"]
    assert set(named) < set(NEED_IMPORTANCE)


def small_llama():
    """Inputs of 32, and of 256 in down_proj."""
    config = tiny_llama().config
    config.intermediate_size = 256
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


@here
def test_a_model_has_the_type_where_it_fits_and_says_where_not(tmp_path):
    calibration = torch.randint(0, 260, (2, 16), generator=torch.Generator().manual_seed(0))
    model, method = small_llama(), make_method("ggml_imatrix", type="Q2_K", fallback=True)
    layers = quantize_model(model, method, uniform(model, 2, 16), calibration)
    kept = {layer.name.rpartition(".")[2]: layer.format for layer in layers}
    assert kept.pop("down_proj") == "ggml Q2_K"
    assert set(kept.values()) == {"ggml Q4_0"}
    size = ModelSize().measure(Subject(None, None, layers, None, 16, RUN))
    assert size.facts["layout"] == ["ggml Q2_K", "ggml Q4_0"]
    assert sorted(set(size.facts["bits_by_layer"])) == [2.625, 4.5]
    assert not [name for name in size.values if "paper" in name or "bcq" in name]
    lutlab.save(model, tmp_path / "saved")
    ids = calibration[:1]
    assert torch.equal(lutlab.load(tmp_path / "saved")(ids).logits, model(ids).logits)


def test_a_layer_that_the_type_does_not_divide_is_refused():
    message = r"layers\.0\.self_attn\.q_proj: Q2_K has blocks of 256 weights, and this layer has 32 inputs.* take Q4_0"
    with pytest.raises(LutlabError, match=message):
        lutlab.quantize(small_llama(), method="ggml", type="Q2_K")
    with pytest.raises(LutlabError, match=r"no type of llama\.cpp's divides them; skip the layer"):
        make_method("ggml", type="Q2_K", fallback=True).type_for(48)
    for kind, other in FALLBACKS.items():
        expected = kind if ggml.block_of(kind)[0] == 32 else other
        assert make_method("ggml_imatrix", type=kind, fallback=True).type_for(512 + 64) == expected


def test_what_llama_cpp_refuses_is_refused():
    for kind in NEED_IMPORTANCE:
        with pytest.raises(LutlabError, match=f"{kind} with an importance.*ggml_imatrix"):
            make_method("ggml", type=kind)
        make_method("ggml_imatrix", type=kind)
    with pytest.raises(LutlabError, match="did you mean 'Q4_K'"):
        make_method("ggml", type="q4_k")
    bad = drawn(8, 512)
    bad[1, 2] = float("nan")
    with pytest.raises(LutlabError, match="1 of 4096 weights are inf or nan"):
        make_method("ggml").quantize(bad, 4, 32)
    wild = CalibStats(torch.eye(4) * float("inf"), torch.ones(4), 1)
    with pytest.raises(LutlabError, match="mean squares of inputs are inf or nan"):
        make_method("ggml_imatrix").prepare(wild)


@here
def test_a_scale_beyond_float16_is_refused():
    with pytest.raises(LutlabError, match="Q4_0 gave blocks with scales that are no numbers"):
        make_method("ggml").quantize(1e7 * WEIGHT, 4, 32)


def test_without_the_library_cells_are_not_run(command, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    obstacle = "llama_cpp and gguf not installed: pip install llama-cpp-python gguf"
    with pytest.raises(LutlabError, match=obstacle):
        lutlab.quantize_tensor(WEIGHT, "ggml")
    row = ("method=ggml", "method.type=Q4_K", "model=llama-embedded-m", "logger=none")
    outcome = command(*row, "evaluate=[ppl:wikitext2,model_size]", "mode=plan")
    assert outcome.code == 0, outcome.err
    assert f"not run: {obstacle}" in outcome.out


@here
def test_an_id_holds_the_library_that_decides_the_numbers():
    run = ModelRun(ModelSpec("m", "folder", "m"), "ggml", 4, 32)
    libraries = cell_identity(Resolved(run, {}), EvalSpec("weight_error"))["libraries"]
    assert libraries["llama_cpp_python"] == importlib.metadata.version("llama-cpp-python")
