"""Parts of a step: by an engine's own clock, by names as profilers printed them; both ways of reading a prompt."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from tests.base.refusals import refused
from tests.evaluators.items import clock, subject
from tests.tiny_models import RUN, tiny_llama, tiny_opt

import lutlab
from lutlab import generate
from lutlab.base import sources
from lutlab.evaluators.breakdown import PARTS, Breakdown, by_part, part_of, profiled
from lutlab.evaluators.context import Context
from lutlab.evaluators.generation import prompts
from lutlab.generate import prefill
from lutlab.generate.eager import Eager


class Clocked(Eager):
    """An engine that says how long its parts take."""

    def breakdown(self, context):
        assert context == 8
        return {"matmul": 0.006, "attention": 0.002, "other": 0.001}


def test_an_engine_that_times_itself_is_believed(monkeypatch):
    clocked = lambda model, length, name: Clocked(model, 1, length, "")  # noqa: E731
    monkeypatch.setattr(generate, "engine", clocked)
    measured = Breakdown(context=8, repeats=2).measure(subject(tiny_llama()))
    shares = {"matmul": 600 / 9, "attention": 200 / 9, "other": 100 / 9, "communication": 0}
    expected = {f"{part}_percent": share for part, share in shares.items()}
    milliseconds = 1e3 * sum(measured.samples) / 2
    assert measured.values == pytest.approx(expected | {"ms_per_token": milliseconds})
    facts = {"context": 8, "parts_by": "the engine's own clock"}
    assert measured.facts.items() >= facts.items()


@pytest.mark.parametrize("make", [tiny_opt, tiny_llama])
def test_operations_of_a_model_are_told_apart(make, capfd):
    model = lutlab.quantize(make().eval(), method="bcq", q=2, g=16)
    engine = generate.engine(model, length=9, name="transformers")
    assert not hasattr(engine, "breakdown")
    with torch.inference_mode():
        parts = profiled(engine, engine.prefill(prompts(model, 1, 8)).argmax(-1), 8, 3)
    assert parts["matmul"] > 0 < parts["attention"]
    assert (parts["communication"], capfd.readouterr()) == (0, ("", ""))
    measured = Breakdown(context=8, repeats=3, engine="transformers").measure(subject(model))
    shares = [share for name, share in measured.values.items() if name.endswith("_percent")]
    assert sum(shares) == pytest.approx(100)
    assert measured.facts["parts_by"] == "torch.profiler"


NAMES = {
    "matmul": (
        "nvjet_hsh_64x8_64x16_4x1_v_bz_TNT",
        "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn",
        "void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, false>",
        "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_f16_64x64_64x6_tn_align8>",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half, float, __half, false>",
        *("lutlab::packed_linear", "aten::addmm", "aten::mm", "aten::_int_mm", "aten::linear"),
    ),
    "attention": (
        "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<...>::Params)",
        "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128_4x1x1_kernel0_0",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 7, false, false>",
        *("aten::_softmax", "aten::bmm", "aten::_scaled_dot_product_flash_attention_for_cpu"),
    ),
    "communication": (
        "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        *("c10d::allreduce_", "gloo:all_gather", "symm_mem::multimem_all_reduce_"),
    ),
    "other": (
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::Half, float>",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ArgMaxOps<float>>>",
        "Memcpy DtoD (Device -> Device)",
        *("aten::native_layer_norm", "aten::mul", "aten::lgamma"),
    ),
}


def test_parts_are_told_by_names_and_add_up_and_our_own_kernels_are_products():
    for part in PARTS:
        assert {name: part_of(name) for name in NAMES[part]} == dict.fromkeys(NAMES[part], part)
    files = Path(sources.folder("kernels"), "cuda").rglob("*.cu")
    text = "".join(path.read_text() for path in files if path.parent.name != "probe")
    names = re.findall(r"__launch_bounds__\([^)]*\)+\s+(\w+)\(", text)
    assert len(names) > 9
    assert {part_of(name) for name in names} == {"matmul"}
    named = [(name, 1.0) for names in NAMES.values() for name in names]
    assert by_part(named) == {part: len(names) for part, names in NAMES.items()}
    assert by_part([]) == dict.fromkeys(PARTS, 0.0)


@pytest.fixture
def quantized():
    return subject(lutlab.quantize(tiny_llama(), method="bcq", q=3, g=16))


def test_ways_of_reading_a_prompt_take_turns_and_gains_are_of_a_round(quantized, monkeypatch):
    ways, own = [], prefill.prefill
    noted = lambda *arguments: ways.append(arguments[-1]) or own(*arguments)  # noqa: E731
    monkeypatch.setattr(prefill, "prefill", noted)
    # Kernel, dequantized; the first round compares.
    clock(monkeypatch, *(1.0, 1.0), *(2.0, 4.0), *(6.0, 3.0), *(1.0, 4.0))
    measured = Context(tokens=12, rounds=3).measure(quantized)
    assert ways == ["kernel", "dequantize"] * 4
    rates = {"kernel_tokens_per_s": 6.0, "dequantize_tokens_per_s": 3.0}
    assert measured.values == {**rates, "dequantize_gain": 0.5, "prompt_tokens": 12}
    assert (measured.samples, measured.facts["tokens"]) == ((0.5, 2.0, 0.25), 12)


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_ways_that_disagree_are_not_timed(wrong, quantized, monkeypatch):
    own = prefill.prefill

    def broken(engine, model, prompts, way):
        logits = own(engine, model, prompts, way)
        return logits + wrong * torch.arange(len(logits[0])) if way == "dequantize" else logits

    monkeypatch.setattr(prefill, "prefill", broken)
    refused("read by dequantized weights", Context(tokens=12).measure, quantized)


def test_what_cannot_be_measured_is_refused(quantized):
    message = r"evaluator\.breakdown\.context=0: give a whole number of at least 1"
    refused(message, Breakdown, context=0)
    refused(r"evaluator\.context\.rounds=0", Context, rounds=0)
    for own in (Breakdown(context=64), Context(tokens=65)):
        refused("context of 64 tokens cannot decode 65", own.measure, quantized)
    dense = dataclasses.replace(RUN, method="none", q=16, g=-1)
    assert "there is one way" in Context.obstacle(dense)
