"""Parts of a step: by an engine's own clock, by names as profilers printed them, and all that our kernels have."""

import re
from pathlib import Path

import pytest
import torch
from tests.tiny_models import RUN, tiny_llama, tiny_opt

import lutlab
from lutlab import generate
from lutlab.base import sources
from lutlab.base.errors import LutlabError
from lutlab.base.specs import Subject
from lutlab.evaluators.breakdown import PARTS, Breakdown, by_part, part_of, profiled
from lutlab.evaluators.generation import prompts
from lutlab.generate.eager import Eager


class Clocked(Eager):
    """An engine that says how long its parts take."""

    def breakdown(self, context):
        """Seconds of a step."""
        assert context == 8
        return {"matmul": 0.006, "attention": 0.002, "other": 0.001}


def test_an_engine_that_times_itself_is_believed(monkeypatch):
    monkeypatch.setattr(
        generate, "engine", lambda model, length, name: Clocked(model, 1, length, "")
    )
    found = Breakdown(context=8, repeats=2).measure(Subject(tiny_llama(), None, (), None, 64, RUN))
    shares = {name: found.values[f"{name}_percent"] for name in ("matmul", "attention", "other")}
    assert shares == pytest.approx({"matmul": 600 / 9, "attention": 200 / 9, "other": 100 / 9})
    assert found.values["communication_percent"] == 0
    assert found.values["ms_per_token"] == pytest.approx(1e3 * sum(found.samples) / 2)
    assert (found.facts["context"], found.facts["parts_by"]) == (8, "the engine's own clock")


@pytest.mark.parametrize("make", [tiny_opt, tiny_llama])
def test_operations_of_a_model_are_told_apart(make, capfd):
    model = make().eval()
    lutlab.quantize(model, method="bcq", q=2, g=16)
    engine = generate.engine(model, length=9, name="transformers")
    assert not hasattr(engine, "breakdown")
    with torch.inference_mode():
        last = engine.prefill(prompts(model, 1, 8)).argmax(-1)
        parts = profiled(engine, last, 8, 3)
    assert parts["matmul"] > 0 < parts["attention"]
    assert parts["communication"] == 0
    assert capfd.readouterr() == ("", "")
    found = Breakdown(context=8, repeats=3, engine="transformers").measure(
        Subject(model, None, (), None, 64, RUN)
    )
    shares = [v for name, v in found.values.items() if name.endswith("_percent")]
    assert sum(shares) == pytest.approx(100)
    assert found.facts["parts_by"] == "torch.profiler"


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(
        LutlabError, match=r"evaluator\.breakdown\.context=0: give a whole number of at least 1"
    ):
        Breakdown(context=0)
    with pytest.raises(LutlabError, match="context of 64 tokens cannot decode 65"):
        Breakdown(context=64).measure(Subject(tiny_llama(context=64), None, (), None, 64, RUN))


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


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_told_by_a_name(part):
    assert {name: part_of(name) for name in NAMES[part]} == dict.fromkeys(NAMES[part], part)


def test_our_own_kernels_are_products():
    files = Path(sources.folder("kernels"), "cuda").rglob("*.cu")
    text = "".join(path.read_text() for path in files if path.parent.name != "probe")
    found = re.findall(r"__launch_bounds__\([^)]*\)+\s+(\w+)\(", text)
    assert len(found) > 9
    assert {part_of(name) for name in found} == {"matmul"}


def test_times_add_up():
    named = [(name, 1.0) for names in NAMES.values() for name in names]
    assert by_part(named) == {part: float(len(names)) for part, names in NAMES.items()}
    assert by_part([]) == dict.fromkeys(PARTS, 0.0)
