"""QIGen's kernels against float64, for every form of the source and every instruction set that runs here."""

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.checks import inputs, refused, relative_error
from tests.kernels.codegen import sanitized
from tests.kernels.weights import uniform_tensor

from lutlab.base.kept.files import sealed
from lutlab.formats import pack
from lutlab.kernels.codegen import isa
from lutlab.kernels.cpu.qigen import qigen_blocks as qigen
from lutlab.kernels.cpu.qigen import qigen_gemv
from lutlab.kernels.cpu.qigen.qigen_blocks import Blocks
from lutlab.kernels.cpu.qigen.qigen_gemv import DEFAULT, MicroKernel, gemv, parameters, prepare
from lutlab.kernels.cpu.qigen.qigen_model import caches

RUNS = [each.name for each in isa.runnable() if each.name != "avx512"]
EXACT, LIMIT = 1e-6, 1e-5
GROUPS = [16, 32, 64, 128, -1]


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """What this machine's user has searched for decides nothing, and no thread waits for others of a busy machine."""
    monkeypatch.setattr(qigen_gemv, "_searched", dict)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def layer(q, rows, columns, g, **options):
    return uniform_tensor(rows, columns, q, g, scale="f32", zeros=(0, 2**q), **options)


def cut(tensor, steps=2, strips=2, panel=2, kernel=DEFAULT):
    """Small blocks, so that small layers have several of them."""
    rows = qigen.step(tensor.bits, tensor.group_size, tensor.codes.shape[1])
    return Blocks(steps * rows, strips * 8 * kernel.t_u, kernel.m_u, kernel.t_u, panel)


def dense(tensor):
    """W by the plain layout."""
    return pack(tensor).dequantize()


def error(x, tensor, packed):
    return relative_error(gemv(x, packed), x, dense(tensor))


CASES = [(q, g, name) for q in (2, 3, 4) for g in GROUPS for name in RUNS]
SHARED = [(q, 8, RUNS[0]) for q in (2, 3, 4)]  # groups that share a unit


@pytest.mark.parametrize(("q", "g", "name"), CASES + SHARED)
def test_against_float64(q, g, name, monkeypatch):
    monkeypatch.setenv("LUTLAB_ISA", name)
    for rows, columns, tokens in [(70, 300, 1), (129, 256, 4), (8, 8, 2), (1, 31, 1)]:
        tensor, x = layer(q, rows, columns, g), inputs(tokens, columns)
        packed = prepare(tensor, cut(tensor))
        assert error(x, tensor, packed) < EXACT
        assert error(x, tensor, prepare(tensor)) < EXACT
        assert name in qigen_gemv.variant(packed)


@settings(deadline=None, max_examples=40)
@given(
    q=st.integers(2, 4), g=st.sampled_from(GROUPS), rows=st.integers(1, 140), columns=st.integers(1, 280),
    tokens=st.integers(1, 4), steps=st.integers(1, 5), strips=st.integers(1, 4), panel=st.integers(1, 5),
    threads=st.integers(1, 3),
)  # fmt: skip
def test_any_shape_in_any_blocks(q, g, rows, columns, tokens, steps, strips, panel, threads):
    tensor, x = layer(q, rows, columns, g, seed=rows), inputs(tokens, columns)
    y = gemv(x, prepare(tensor, cut(tensor, steps, strips, panel)), threads)
    weight = dense(tensor).double()
    # against what is summed, as a sum of few terms may cancel to almost nothing
    summed = (x.abs().double() @ weight.t()).norm()
    assert (y.double() - x.double() @ weight.t()).norm() <= LIMIT * summed + 1e-5


@pytest.mark.parametrize("kernel", [(1, 1), (1, 7), (2, 4), (32, 1)])
def test_no_micro_kernel_changes_the_answer(kernel):
    tensor = layer(3, 100, 250, 32)
    packed = prepare(tensor, cut(tensor, kernel=MicroKernel(*kernel)))
    assert error(inputs(2, 250), tensor, packed) < EXACT


def test_threads_do_not_change_a_bit():
    tensor, x = layer(4, 300, 256, 64), inputs(3, 256)
    packed = prepare(tensor, cut(tensor, panel=1))
    for threads in (2, 7):
        assert torch.equal(gemv(x, packed, 1), gemv(x, packed, threads))


@pytest.mark.parametrize("g", [32, -1])
def test_extreme_activations(g):
    tensor, x = layer(4, 96, 256, g), inputs(1, 256)
    packed, outliers = prepare(tensor, cut(tensor)), x.clone()
    outliers[0, ::37] = 1e4
    for large in (outliers, x * 1e-30, x * 1e30):
        assert error(large, tensor, packed) < LIMIT
    assert not gemv(torch.zeros(1, 256), packed).any()
    tiny = torch.full((1, 256), 1e-40)  # not a normal float32: kept, not flushed to zero
    assert error(tiny, tensor, packed) < 1e-2


def test_a_mean_far_from_zero_loses_what_cancels():
    """Eq. 1 subtracts two sums of x: the error is that of these sums, as the module says."""
    tensor, x = layer(4, 64, 2048, -1), inputs(1, 2048) + 3
    wrong = gemv(x, prepare(tensor)) - x.double() @ dense(tensor).double().t()
    sums = x.double().sum() * 15 * tensor.scale.double().max()
    assert wrong.abs().max() < 1e-6 * sums


def test_shapes_and_strides_of_x():
    tensor = layer(4, 20, 64, 32)
    packed = prepare(tensor, cut(tensor))
    x = inputs(6, 64).view(2, 3, 64)
    y = gemv(x, packed)
    assert y.shape == (2, 3, 20)
    assert y.is_contiguous()
    assert torch.equal(gemv(x[0, 0], packed), y[0, 0])
    assert gemv(torch.empty(0, 64), packed).shape == (0, 20)
    wide = inputs(6, 130)
    assert torch.equal(gemv(wide[:, 1:129:2], packed), gemv(wide[:, 1:129:2].contiguous(), packed))
    assert torch.equal(gemv(wide.t()[:64].t(), packed), gemv(wide[:, :64].clone(), packed))
    odd = torch.empty(65)[1:].copy_(x[0, 0])  # not at a multiple of 32 bytes
    assert torch.equal(gemv(odd, packed), y[0, 0])


def test_order_is_that_of_input_channels():
    tensor, x = layer(4, 24, 64, 32, ordered=True), inputs(2, 64)
    packed = prepare(tensor, cut(tensor))
    assert error(x, tensor, packed) < EXACT
    assert torch.equal(packed.dequantize(), dense(tensor))


def test_what_does_not_fit_is_refused():
    tensor, x = layer(4, 24, 64, 32), torch.zeros(1, 64)
    packed = prepare(tensor, cut(tensor))
    refused("float32 activations, these are torch.float16", gemv, x.half(), packed)
    refused("the last axis must be 64", gemv, x[:, 1:], packed)
    refused("the last axis must be 64", gemv, torch.tensor(1.0), packed)
    refused("x is on meta", gemv, x.to("meta"), packed)
    refused("threads=0", gemv, x, packed, threads=0)
    refused("q=3", prepare, layer(3, 8, 96, 24))
    refused("q=5", prepare, layer(5, 8, 96, 32))
    for kernel in (MicroKernel(3, 1), MicroKernel(16, 1), MicroKernel(1, 0)):
        refused("m_u must divide the 8 values", qigen_gemv.source, 4, 0, kernel, "avx2")


@pytest.mark.parametrize(("q", "g"), [(2, -1), (3, 16), (4, 32)])
def test_no_byte_beyond_a_buffer_is_touched(q, g, tmp_path):
    """Under AddressSanitizer and UBSan; y begins as NaN."""
    tensor, x = layer(q, 41, 71, g), inputs(2, 71)
    buffers, sizes = qigen_gemv._arguments(x, prepare(tensor, cut(tensor)), 2)
    buffers[qigen_gemv._OUT].fill_(float("nan"))
    run = qigen_gemv.instructions()
    lanes = "avx2" if run.name == "avx2" else "portable"
    text = qigen_gemv.source(q, qigen_gemv.groups_in_unit(q, g, 71), DEFAULT, lanes)
    after = sanitized.call(text, "qigen_gemv", *buffers, *sizes, isa=run, folder=tmp_path)
    assert relative_error(after[qigen_gemv._OUT][:, :41], x, dense(tensor)) < EXACT


@pytest.mark.parametrize(("bits", "unit"), [(2, 16), (3, 32), (4, 8)])
def test_micro_kernels_are_those_of_eq_4(bits, unit):
    every = {(m, t) for m in range(1, 17) for t in range(1, 17) if m + m * t + t <= 16}
    expected = {(m, t) for m, t in every if unit % m == 0}
    assert {(k.m_u, k.t_u) for k in qigen_gemv.micro_kernels(bits)} == expected
    assert (2, 4) in expected


@pytest.mark.parametrize(
    ("bits", "g", "k", "expected"),
    [(4, -1, 64, 0), (4, 64, 64, 0), (4, 8, 64, 1), (3, 16, 64, 2), (3, 8, 64, 4), (2, 8, 64, 2)],
)
def test_forms_of_the_source(bits, g, k, expected):
    assert qigen_gemv.groups_in_unit(bits, g, k) == expected


def test_parameters_fill_the_first_level_cache(caplog):
    with caplog.at_level(logging.INFO, logger="lutlab.kernels.cpu.qigen.qigen_gemv"):
        blocks, searched = parameters((4096, 4096), 4, 128, cores=2)
    taken = 32 * blocks.m_b + 4 * blocks.m_b * blocks.t_b + 32 * blocks.t_b
    assert 0.9 < taken / (8 * caches()["l1"]) <= 1
    assert blocks.t_b * blocks.panel == 2048  # a core's share
    assert blocks.m_b % 128 == 0
    assert not searched
    for told in (f" {taken} of ", "m_b=", "not searched here"):
        assert told in caplog.text


@pytest.fixture
def searching(alone, tmp_path, monkeypatch):
    """A search is looked for again, in an empty cache folder."""
    monkeypatch.undo()
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))


def test_search_keeps_the_fastest_for_this_machine(searching, monkeypatch):
    monkeypatch.setattr(qigen_gemv, "_SEARCH_SIDE", 128)
    kernels = (MicroKernel(1, 1), MicroKernel(1, 7))
    monkeypatch.setattr(qigen_gemv, "micro_kernels", lambda bits: kernels)
    times = qigen_gemv.search(3)
    best = min(times, key=times.__getitem__)
    assert set(times) == set(kernels)
    blocks, searched = parameters((64, 64), 3, 32)
    assert searched
    assert (blocks.m_u, blocks.t_u) == (best.m_u, best.t_u)
    assert not parameters((64, 64), 4, 32)[1]


@pytest.mark.parametrize(
    "kept", [[], {"4": {"m": 1}}, {"4": {"m_u": 0, "t_u": 4}}, {"7": {"m_u": 1, "t_u": 4}}]
)
def test_a_micro_kernel_that_is_not_searched_counts_as_damage(searching, caplog, kept):
    file = qigen_gemv._parameter_file()
    file.write_bytes(sealed(kept, file.name))
    assert not parameters((64, 64), 4, 32)[1]
    assert f"{file} is damaged (" in caplog.text
