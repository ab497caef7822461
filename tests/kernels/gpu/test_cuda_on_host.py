"""The shim itself: it does what a GPU does, and says so where a kernel does wrong."""

import pytest
import torch
from tests.kernels.gpu.cuda_on_host import Fault, build, launch

from lutlab.kernels.codegen import cuda

COMMON = (cuda.ROOT / "common.cuh").read_text()


def run(body, *arguments, parameters="int *out", before="", **how):
    text = f'{before}extern "C" __global__ void kernel({parameters}) {{\n{body}\n}}\n'
    launch(build(text, ("kernel",)), "kernel", *arguments, **how)


def numbers(count):
    return torch.full((count,), -7, dtype=torch.int32)


@pytest.fixture(params=[False, True], ids=["forward", "reverse"])
def reverse(request):
    return request.param


@pytest.mark.parametrize("barrier", ["__syncthreads();", ""])
def test_a_barrier_orders_threads_and_its_absence_shows_in_one_of_the_orders(barrier):
    wrong = 0
    for reverse in (False, True):
        out = numbers(96)
        body = f"""
            __shared__ int value[96];
            value[threadIdx.x] = threadIdx.x;
            {barrier}
            out[threadIdx.x] = value[(threadIdx.x + 1) % 96];"""
        run(body, out, block=96, reverse=reverse)
        wrong += not torch.equal(out, (torch.arange(96).int() + 1) % 96)
    assert wrong == (0 if barrier else 2)  # 95 reads 0's, 0 reads 1's


def test_blocks_run_in_their_order_or_shuffled(reverse):
    out = torch.zeros(61, dtype=torch.int32)
    body = "if (threadIdx.x == 0) out[1 + atomicAdd(out, 1)] = blockIdx.y * 10 + blockIdx.x;"
    run(body, out, grid=(10, 6), reverse=reverse)
    assert out[0] == 60
    assert sorted(out[1:].tolist()) == list(range(60))
    in_order = (out[2:] == out[1:-1] + 1).sum() / 59
    assert in_order < 0.2 if reverse else in_order == 1


def test_dynamic_and_static_shared_memory_start_as_poison_in_every_block(reverse):
    out = numbers(4)
    body = """
        DYNAMIC_SHARED(int, there);
        __shared__ int here[2];
        out[2 * blockIdx.x] = there[1];
        out[2 * blockIdx.x + 1] = here[1];
        there[1] = here[1] = 5;"""
    run(body, out, grid=2, block=1, shared=8, reverse=reverse)
    assert out.tolist() == [-1, -1, -1, -1]


def test_warp_functions(reverse):
    out = numbers(7 * 64)
    body = """
        const unsigned all = 0xffffffffu;
        const int t = threadIdx.x, lane = t % 32;
        out[t] = __shfl_xor_sync(all, t, 5);
        out[64 + t] = __shfl_down_sync(all, t, 3);
        out[128 + t] = __shfl_up_sync(all, t, 1, 8);
        out[192 + t] = __shfl_sync(all, t, 9);
        out[256 + t] = __ballot_sync(all, lane % 3 == 0);
        if (lane < 16) out[320 + t] = __any_sync(0x0000ffffu, lane == 4) + __all_sync(0x0000ffffu, lane < 9);
        out[384 + t] = __reduce_max_sync(all, (unsigned)t);
        __syncwarp();"""
    run(body, out, block=64, reverse=reverse)
    t = torch.arange(64)
    lane, first = t % 32, t // 32 * 32
    assert torch.equal(out[:64], (t ^ 5).int())
    assert torch.equal(out[64:128], torch.where(lane + 3 < 32, t + 3, t).int())
    assert torch.equal(out[128:192], torch.where(t % 8 > 0, t - 1, t).int())
    assert torch.equal(out[192:256], (first + 9).int())
    votes = sum(1 << n for n in range(0, 32, 3))
    assert (out[256:320] == votes).all()
    assert (out[320:384][lane < 16] == 1).all()
    assert (out[320:384][lane >= 16] == -7).all()
    assert torch.equal(out[384:], (first + 31).int())


def test_the_last_block_to_arrive_sees_all_and_leaves_the_counter_at_zero(reverse):
    body = """
        if (threadIdx.x == 0) parts[blockIdx.x] = blockIdx.x + 1;
        if (!last_to_arrive(counter, gridDim.x)) return;
        if (threadIdx.x == 0) {
            int sum = 0;
            for (unsigned i = 0; i < gridDim.x; i++) sum += __ldcg(parts + i);
            atomicAdd(out, sum);
        }"""
    counter, out = torch.zeros(2, 1, dtype=torch.int32)
    how = {"parameters": "unsigned *counter, int *parts, int *out", "before": COMMON}
    for _ in range(2):
        run(body, counter, numbers(5), out, grid=5, block=40, reverse=reverse, **how)
    assert (counter.item(), out.item()) == (0, 30)


def test_half_rounds_as_torch_does(reverse):
    x = torch.randn(64, generator=torch.Generator().manual_seed(0)).half()
    out = torch.empty(6, 32, dtype=torch.float16)
    body = """
        const int t = threadIdx.x;
        const __half a = x[t], b = x[32 + t];
        out[t] = __hadd(a, b);
        out[32 + t] = __hmul(a, b);
        out[64 + t] = __float2half_rn(__half2float(a) * 1e-6f);
        const __half2 both = __hadd2(__halves2half2(a, b), __halves2half2(b, b));
        out[96 + t] = both.x;
        out[128 + t] = __float2half_rn(__half2float(a) * 1e6f);
        if (t % 2 == 0) *reinterpret_cast<__half2 *>(out + 160 + t) = __halves2half2(b, a);"""
    run(body, x, out, parameters="const __half *x, __half *out", reverse=reverse)
    a, b = x[:32], x[32:]
    assert torch.equal(out[0], a + b)
    assert torch.equal(out[1], a * b)
    assert torch.equal(out[2], (a.float() * 1e-6).half())
    assert torch.equal(out[3], a + b)
    assert torch.equal(out[4], (a.float() * 1e6).half())
    assert torch.equal(out[5], torch.stack((b[::2], a[::2]), 1).flatten())


def test_an_asynchronous_copy_arrives_when_it_is_waited_for():
    body = """
        DYNAMIC_SHARED(int, there);
        copy_16_async(there, x);
        copy_commit();
        copy_16_async(there + 4, x + 4);
        copy_commit();
        copy_wait<1>();
        out[0] = there[3];
        out[1] = there[4];
        copy_wait<0>();
        out[2] = there[4];"""
    x, out = torch.arange(8, dtype=torch.int32), numbers(3)
    run(body, x, out, parameters="const int *x, int *out", before=COMMON, block=1, shared=32)
    assert out.tolist() == [3, -1, 4]


# name -> body, what is told
WRONG = {
    "some threads at a barrier": (
        "if (threadIdx.x < 7) __syncthreads();",
        "wait for each other in vain.*thread 0 on: waits at __syncthreads.*thread 7 on: has returned"),
    "two barriers": ("if (threadIdx.x < 7)\n__syncthreads();\nelse __syncthreads();", "in vain"),
    "a lane that never comes": (
        "if (threadIdx.x > 3) out[threadIdx.x] = __shfl_sync(~0u, 1, 0);",
        "waits for its warp in line 1 with mask ffffffff"),
    "a warp half at a barrier": ("if (threadIdx.x < 16) __syncthreads(); else __syncwarp();", "in vain"),
    "not in its own mask": ("__shfl_sync(0xfu, 1, 0);", "mask does not name it"),
    "a lane outside of the mask": ("if (threadIdx.x < 4) out[0] = __shfl_sync(0xfu, 1, 9);", "not in its mask"),
    "one element too far": (
        "out[threadIdx.x + 1] = 0;",
        r"thread \(31, 0, 0\) of block \(0, 0, 0\) touched byte 128 of buffer 0, which has 128"),
    "one element too early": ("out[(int)threadIdx.x - 2000] = 0;", "touched byte -[0-9]+ of buffer 0"),
    "a little too early": ("out[(int)threadIdx.x - 1] = 0;", "written beyond argument 0"),
    "read beyond the end": ("if (out[threadIdx.x * 2]) out[0] = 1;", "touched byte [0-9]+ of buffer 0"),
    "shared memory too small": ("DYNAMIC_SHARED(int, there); there[threadIdx.x] = 1;", "shared memory"),
    "null": ("int *no = out[0] == 77 ? out : nullptr; *no = 1;", "of no buffer"),
    "a misaligned vector": ("*(uint4 *)(out + 1) = make_uint4(1, 2, 3, 4);", "undefined"),
    "a shift beyond the word": ("out[0] = 1u << (out[0] + 39);", "undefined"),
}  # fmt: skip


def wrong_kernels():
    """All of them in one library, the sooner compiled."""
    bodies = {f"wrong{at}": body for at, (body, _) in enumerate(WRONG.values())}
    bodies["right"] = "out[threadIdx.x] = threadIdx.x; __syncthreads();"
    head = 'extern "C" __global__ void {}(int *out) {{\n#line 1\n{}\n}}\n'
    return build("".join(head.format(*kernel) for kernel in bodies.items()), tuple(bodies))


@pytest.mark.parametrize("at", range(len(WRONG)), ids=list(WRONG))
def test_what_is_wrong_is_an_error_in_words(at, reverse):
    _, message = list(WRONG.values())[at]
    with pytest.raises(Fault, match=message):
        launch(wrong_kernels(), f"wrong{at}", numbers(32), shared=64, reverse=reverse)
    out = numbers(32)  # and the next launch is a fresh one
    launch(wrong_kernels(), "right", out, shared=64, reverse=reverse)
    assert torch.equal(out, torch.arange(32).int())


def test_the_number_of_arguments_is_checked():
    with pytest.raises(AssertionError, match="kernel has 1 arguments, not 2"):
        run("out[0] = 1;", numbers(1), 3)
