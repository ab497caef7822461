"""Kernels by what they do, by names as profilers of real runs printed them, and by all names that ours have."""

import re
from pathlib import Path

import pytest

from lutlab import sources
from lutlab.measure.gpu_breakdown import KINDS, by_kind, kind_of

NAMES = {
    "matmul": (
        "nvjet_hsh_64x8_64x16_4x1_v_bz_TNT",
        "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn",
        "void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, false>",
        "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_f16_64x64_64x6_tn_align8>",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half, float, __half, false>",
    ),
    "attention": (
        "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<...>::Params)",
        "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128_4x1x1_kernel0_0",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 7, false, false>",
    ),
    "communication": ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",),
    "other": (
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::Half, float>",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ArgMaxOps<float>>>",
        "Memcpy DtoD (Device -> Device)",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_kernels(kind):
    assert {name: kind_of(name) for name in NAMES[kind]} == dict.fromkeys(NAMES[kind], kind)


def test_our_own_kernels_are_products():
    files = Path(sources.folder("kernels"), "cuda").rglob("*.cu")
    text = "".join(path.read_text() for path in files if path.parent.name != "probe")
    found = re.findall(r"__launch_bounds__\([^)]*\)+\s+(\w+)\(", text)
    assert len(found) > 9
    assert {kind_of(name) for name in found} == {"matmul"}


def test_times_add_up():
    kernels = [(name, 1.0) for names in NAMES.values() for name in names]
    assert by_kind(kernels) == {kind: float(len(names)) for kind, names in NAMES.items()}
    assert by_kind([]) == dict.fromkeys(KINDS, 0.0)
