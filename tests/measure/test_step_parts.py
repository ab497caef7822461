"""Operations and kernels by what they do: names as profilers printed them, and all names that our kernels have."""

import re
from pathlib import Path

import pytest

from lutlab import sources
from lutlab.measure.step_parts import PARTS, by_part, part_of

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
