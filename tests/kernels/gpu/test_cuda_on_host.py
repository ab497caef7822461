"""The shim itself: it does what a GPU does, and says so where a kernel does wrong."""

import pytest
import torch
from tests.kernels.gpu import cuda_on_host
from tests.kernels.gpu.cuda_on_host import Fault


def run(body, *arguments, parameters="int *out", grid=1, block=32, shared=0, reverse=False):
    text = f'extern "C" __global__ void kernel({parameters}) {{\n{body}\n}}\n'
    kernels = cuda_on_host.build(text, ("kernel",))
    dims = [
        (*size, 1, 1, 1)[:3] if isinstance(size, tuple) else (size, 1, 1) for size in (grid, block)
    ]
    cuda_on_host.launch(
        kernels,
        "kernel",
        grid=dims[0],
        block=dims[1],
        arguments=arguments,
        shared=shared,
        reverse=reverse,
    )


def numbers(count):
    return torch.full((count,), -7, dtype=torch.int32)


@pytest.fixture(params=[False, True], ids=["forward", "reverse"])
def reverse(request):
    return request.param


def test_every_thread_of_every_block_runs_once(reverse):
    out = numbers(2 * 3 * 2 * 4 * 5 * 2)
    body = """
        int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        int threads = blockDim.x * blockDim.y * blockDim.z;
        atomicAdd(out + block * threads + thread, 7 + block * 1000 + thread);"""
    run(body, out, grid=(2, 3, 2), block=(4, 5, 2), reverse=reverse)
    expected = torch.arange(12).unsqueeze(1) * 1000 + torch.arange(40)
    assert torch.equal(out, expected.flatten().int())


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


def test_warps_do_not_wait_for_one_another_and_halves_of_a_warp_work_apart(reverse):
    out = numbers(64)
    body = """
        const unsigned half = threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u;
        int value = threadIdx.x;
        if (threadIdx.x % 32 < 16) {
            for (int i = 8; i > 0; i /= 2) value += __shfl_xor_sync(half, value, i);
            if (threadIdx.x < 32) value += __shfl_sync(half, 1000, 0);
        } else {
            value = __shfl_sync(half, value, 31);
        }
        out[threadIdx.x] = value;"""
    run(body, out, block=64, reverse=reverse)
    first, second = sum(range(16)), sum(range(32, 48))
    assert out.tolist() == [first + 1000] * 16 + [31] * 16 + [second] * 16 + [63] * 16


def test_the_last_block_to_arrive_sees_all_and_leaves_the_counter_at_zero(reverse):
    common = (cuda_on_host.HERE.parents[3] / "kernels" / "cuda" / "common.cuh").read_text()
    text = (
        common
        + """
    extern "C" __global__ void kernel(unsigned *counter, int *parts, int *out) {
        if (threadIdx.x == 0) parts[blockIdx.x] = blockIdx.x + 1;
        if (!last_to_arrive(counter, gridDim.x)) return;
        if (threadIdx.x == 0) {
            int sum = 0;
            for (unsigned i = 0; i < gridDim.x; i++) sum += __ldcg(parts + i);
            atomicAdd(out, sum);
        }
    }
    """
    )
    kernels = cuda_on_host.build(text, ("kernel",))
    counter, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    for _ in range(2):
        arguments = [counter, numbers(5), out]
        cuda_on_host.launch(
            kernels,
            "kernel",
            grid=(5, 1, 1),
            block=(40, 1, 1),
            arguments=arguments,
            reverse=reverse,
        )
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
    common = (cuda_on_host.HERE.parents[3] / "kernels" / "cuda" / "common.cuh").read_text()
    text = (
        common
        + """
    extern "C" __global__ void kernel(const int *x, int *out) {
        DYNAMIC_SHARED(int, there);
        copy_16_async(there, x);
        copy_commit();
        copy_16_async(there + 4, x + 4);
        copy_commit();
        copy_wait<1>();
        out[0] = there[3];
        out[1] = there[4];
        copy_wait<0>();
        out[2] = there[4];
    }
    """
    )
    kernels = cuda_on_host.build(text, ("kernel",))
    out = numbers(3)
    arguments = [torch.arange(8, dtype=torch.int32), out]
    cuda_on_host.launch(
        kernels, "kernel", grid=(1, 1, 1), block=(1, 1, 1), shared=32, arguments=arguments
    )
    assert out.tolist() == [3, -1, 4]


WRONG = {
    "some threads at a barrier": (
        "if (threadIdx.x < 7) __syncthreads();",
        "wait for each other in vain.*thread 0 on: waits at __syncthreads.*thread 7 on: has returned",
    ),
    "two barriers": ("if (threadIdx.x < 7)\n__syncthreads();\nelse __syncthreads();", "in vain"),
    "a lane that never comes": (
        "if (threadIdx.x > 3) out[threadIdx.x] = __shfl_sync(~0u, 1, 0);",
        "waits for its warp in line 1 with mask ffffffff",
    ),
    "a warp half at a barrier": (
        "if (threadIdx.x < 16) __syncthreads(); else __syncwarp();",
        "in vain",
    ),
    "not in its own mask": ("__shfl_sync(0xfu, 1, 0);", "mask does not name it"),
    "a lane outside of the mask": (
        "if (threadIdx.x < 4) out[0] = __shfl_sync(0xfu, 1, 9);",
        "not in its mask",
    ),
    "one element too far": (
        "out[threadIdx.x + 1] = 0;",
        r"thread \(31, 0, 0\) of block \(0, 0, 0\) touched byte 128 of buffer 0, which has 128",
    ),
    "one element too early": (
        "out[(int)threadIdx.x - 2000] = 0;",
        "touched byte -[0-9]+ of buffer 0",
    ),
    "a little too early": ("out[(int)threadIdx.x - 1] = 0;", "written beyond argument 0"),
    "read beyond the end": (
        "if (out[threadIdx.x * 2]) out[0] = 1;",
        "touched byte [0-9]+ of buffer 0",
    ),
    "shared memory too small": (
        "DYNAMIC_SHARED(int, there); there[threadIdx.x] = 1;",
        "shared memory",
    ),
    "null": ("int *no = out[0] == 77 ? out : nullptr; *no = 1;", "of no buffer"),
    "a misaligned vector": ("*(uint4 *)(out + 1) = make_uint4(1, 2, 3, 4);", "undefined"),
    "a shift beyond the word": ("out[0] = 1u << (out[0] + 39);", "undefined"),
}


def wrong_kernels():
    """All of them in one library, the sooner compiled."""
    bodies = {f"wrong{at}": body for at, (body, _) in enumerate(WRONG.values())}
    bodies["right"] = "out[threadIdx.x] = threadIdx.x; __syncthreads();"
    texts = [
        f'extern "C" __global__ void {name}(int *out) {{\n#line 1\n{body}\n}}\n'
        for name, body in bodies.items()
    ]
    return cuda_on_host.build("".join(texts), tuple(bodies))


@pytest.mark.parametrize("at", range(len(WRONG)), ids=list(WRONG))
def test_what_is_wrong_is_an_error_in_words(at, reverse):
    _, message = list(WRONG.values())[at]
    how = {"grid": (1, 1, 1), "block": (32, 1, 1), "shared": 64, "reverse": reverse}
    with pytest.raises(Fault, match=message):
        cuda_on_host.launch(wrong_kernels(), f"wrong{at}", arguments=[numbers(32)], **how)
    out = numbers(32)  # and the next launch is a fresh one
    cuda_on_host.launch(wrong_kernels(), "right", arguments=[out], **how)
    assert torch.equal(out, torch.arange(32).int())


def test_memory_around_a_kernel_survives_many_launches():
    text = 'extern "C" __global__ void kernel(int *out) { __syncthreads(); out[threadIdx.x] += 1; }'
    kernels = cuda_on_host.build(text, ("kernel",))
    out = torch.zeros(96, dtype=torch.int32)
    for block in (1, 96, 33, 96):
        cuda_on_host.launch(kernels, "kernel", grid=(3, 1, 1), block=(block, 1, 1), arguments=[out])
    assert (out[0], out[32], out[95]) == (12, 9, 6)


def test_the_number_of_arguments_is_checked():
    with pytest.raises(AssertionError, match="kernel has 1 arguments, not 2"):
        run("out[0] = 1;", numbers(1), 3)
