"""QIGen's kernels against float64, for every form of the source and every instruction set that runs here."""

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.codegen import sanitized

from lutlab.base.errors import LutlabError
from lutlab.base.groups import group_count
from lutlab.base.kept.files import sealed
from lutlab.base.tensors import UniformTensor
from lutlab.kernels.codegen import isa
from lutlab.kernels.cpu.qigen import qigen_blocks as qigen
from lutlab.kernels.cpu.qigen import qigen_gemv
from lutlab.kernels.cpu.qigen.qigen_blocks import Blocks
from lutlab.kernels.cpu.qigen.qigen_gemv import (
    DEFAULT,
    MicroKernel,
    gemv,
    groups_in_unit,
    parameters,
    prepare,
    search,
    source,
    variant,
)
from lutlab.kernels.cpu.qigen.qigen_model import caches

RUNS = [each.name for each in isa.runnable() if each.name != "avx512"]
LIMIT = 1e-5
GROUPS = [16, 32, 64, 128, -1]


@pytest.fixture(autouse=True)
def never_searched(monkeypatch):
    """What this machine's user has searched for does not decide what is tested."""
    monkeypatch.setattr(qigen_gemv, "_searched", dict)


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other on a busy machine are slow; tests of threads name their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def layer(q, rows, in_features, g, seed=0):
    generator = torch.Generator().manual_seed(seed)
    groups = group_count(g, in_features)
    codes = torch.randint(2**q, (rows, in_features), generator=generator).byte()
    scale = torch.rand(rows, groups, generator=generator) + 0.1
    zero = torch.randint(2**q, (rows, groups), generator=generator).short()
    return UniformTensor(codes, scale, zero, q, g)


def cut(tensor, steps=2, strips=2, panel=2, kernel=DEFAULT):
    """Small blocks, so that small layers have several of them."""
    rows = qigen.step(tensor.bits, tensor.group_size, tensor.codes.shape[1])
    return Blocks(steps * rows, strips * 8 * kernel.t_u, kernel.m_u, kernel.t_u, panel)


def exact(x, tensor):
    """x W^T in float64 from the codes, not from what was packed."""
    in_features = tensor.codes.shape[1]
    length = in_features if tensor.group_size == -1 else tensor.group_size
    group = torch.arange(in_features) // length
    weight = tensor.scale.double()[:, group] * (
        tensor.codes.double() - tensor.zero_point.double()[:, group]
    )
    return x.double() @ weight.t()


def error(y, expected):
    return ((y.double() - expected).norm() / expected.norm()).item()


def activations(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("g", GROUPS)
@pytest.mark.parametrize("q", [2, 3, 4])
def test_against_float64(q, g, name, monkeypatch):
    monkeypatch.setenv("LUTLAB_ISA", name)
    for rows, in_features, tokens in [(70, 300, 1), (129, 256, 4), (8, 8, 2), (1, 31, 1)]:
        tensor = layer(q, rows, in_features, g)
        x = activations(tokens, in_features)
        packed = prepare(tensor, cut(tensor))
        assert error(gemv(x, packed), exact(x, tensor)) < 1e-6
        assert error(gemv(x, prepare(tensor)), exact(x, tensor)) < 1e-6
        assert name in variant(packed)


@pytest.mark.parametrize(("q", "g"), [(3, 8), (2, 8), (4, 8)])
def test_groups_that_share_a_unit(q, g):
    tensor, x = layer(q, 40, 104, g), activations(2, 104)
    assert error(gemv(x, prepare(tensor, cut(tensor))), exact(x, tensor)) < 1e-6


@settings(deadline=None, max_examples=40)
@given(
    q=st.integers(2, 4),
    g=st.sampled_from(GROUPS),
    rows=st.integers(1, 140),
    in_features=st.integers(1, 280),
    tokens=st.integers(1, 4),
    steps=st.integers(1, 5),
    strips=st.integers(1, 4),
    panel=st.integers(1, 5),
    threads=st.integers(1, 3),
)
def test_any_shape_in_any_blocks(q, g, rows, in_features, tokens, steps, strips, panel, threads):
    tensor, x = layer(q, rows, in_features, g, rows), activations(tokens, in_features)
    y = gemv(x, prepare(tensor, cut(tensor, steps, strips, panel)), threads)
    expected = exact(x, tensor)
    # against what is summed, as a sum of few terms may cancel to almost nothing
    assert (y.double() - expected).norm() <= LIMIT * exact(x.abs(), tensor).abs().norm() + 1e-5


@pytest.mark.parametrize("kernel", [(1, 1), (1, 7), (2, 4), (32, 1)])
def test_no_micro_kernel_changes_the_answer(kernel):
    tensor, x = layer(3, 100, 250, 32), activations(2, 250)
    blocks = cut(tensor, kernel=MicroKernel(*kernel))
    assert error(gemv(x, prepare(tensor, blocks)), exact(x, tensor)) < 1e-6


def test_threads_do_not_change_a_bit():
    tensor, x = layer(4, 300, 256, 64), activations(3, 256)
    packed = prepare(tensor, cut(tensor, panel=1))
    assert torch.equal(gemv(x, packed, 1), gemv(x, packed, 2))
    assert torch.equal(gemv(x, packed, 1), gemv(x, packed, 7))


@pytest.mark.parametrize("g", [32, -1])
def test_extreme_activations(g):
    tensor = layer(4, 96, 256, g)
    packed = prepare(tensor, cut(tensor))
    x = activations(1, 256)
    outliers = x.clone()
    outliers[0, ::37] = 1e4
    for each in (outliers, x * 1e-30, x * 1e30):
        assert error(gemv(each, packed), exact(each, tensor)) < LIMIT
    assert not gemv(torch.zeros(1, 256), packed).any()
    tiny = torch.full((1, 256), 1e-40)  # not a normal float32: kept, not flushed to zero
    assert error(gemv(tiny, packed), exact(tiny, tensor)) < 1e-2


def test_a_mean_far_from_zero_loses_what_cancels():
    """Eq. 1 subtracts two sums of x: the error is that of these sums, as the module says."""
    tensor = layer(4, 64, 2048, -1)
    x = activations(1, 2048) + 3
    y, expected = gemv(x, prepare(tensor)), exact(x, tensor)
    sums = x.double().sum() * 15 * tensor.scale.double().max()
    assert (y - expected).abs().max() < 1e-6 * sums


@pytest.mark.parametrize("g", [16, -1])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_so_in_its_own_row(value, g):
    tensor = layer(3, 50, 100, g)
    packed = prepare(tensor, cut(tensor))
    x = activations(3, 100)
    clean = gemv(x, packed)
    x[1, 99] = value
    y = gemv(x, packed)
    assert not y[1].isfinite().any()
    assert torch.equal(y[[0, 2]], clean[[0, 2]])


def test_shapes_and_strides_of_x():
    tensor = layer(4, 20, 64, 32)
    packed = prepare(tensor, cut(tensor))
    x = activations(2, 3, 64)
    y = gemv(x, packed)
    assert y.shape == (2, 3, 20)
    assert y.is_contiguous()
    assert torch.equal(gemv(x[0, 0], packed), y[0, 0])
    assert gemv(torch.empty(0, 64), packed).shape == (0, 20)
    wide = activations(6, 130)
    assert torch.equal(gemv(wide[:, 1:129:2], packed), gemv(wide[:, 1:129:2].contiguous(), packed))
    assert torch.equal(gemv(wide.t()[:64].t(), packed), gemv(wide[:, :64].clone(), packed))
    odd = torch.empty(65)[1:].copy_(x[0, 0])  # not at a multiple of 32 bytes
    assert torch.equal(gemv(odd, packed), y[0, 0])


def test_order_is_that_of_input_channels():
    tensor = layer(4, 24, 64, 32)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(3)).int()
    ordered = UniformTensor(tensor.codes, tensor.scale, tensor.zero_point, 4, 32, order)
    packed, x = prepare(ordered, cut(tensor)), activations(2, 64)
    assert torch.equal(gemv(x, packed), gemv(x[:, order.long()], prepare(tensor, cut(tensor))))
    assert error(gemv(x, packed), x.double() @ packed.dequantize().double().t()) < 1e-6


def test_what_does_not_fit_is_refused():
    tensor = layer(4, 24, 64, 32)
    packed = prepare(tensor, cut(tensor))
    with pytest.raises(LutlabError, match=r"float32 activations, these are torch.float16"):
        gemv(torch.zeros(1, 64).half(), packed)
    with pytest.raises(LutlabError, match="the last axis must be 64"):
        gemv(torch.zeros(1, 63), packed)
    with pytest.raises(LutlabError, match="the last axis must be 64"):
        gemv(torch.tensor(1.0), packed)
    with pytest.raises(LutlabError, match="x is on meta"):
        gemv(torch.zeros(1, 64, device="meta"), packed)
    with pytest.raises(LutlabError, match="threads=0"):
        gemv(torch.zeros(1, 64), packed, threads=0)
    with pytest.raises(LutlabError, match="q=3"):
        prepare(layer(3, 8, 96, 24))
    with pytest.raises(LutlabError, match="q=5"):
        prepare(layer(5, 8, 96, 32))


@pytest.mark.parametrize(("q", "g"), [(2, -1), (3, 16), (4, 32)])
def test_no_byte_beyond_a_buffer_is_touched(q, g, tmp_path):
    """Under AddressSanitizer and UBSan; y begins as NaN."""
    tensor, x = layer(q, 41, 71, g), activations(2, 71)
    packed = prepare(tensor, cut(tensor))
    buffers, sizes = qigen_gemv._arguments(x, packed, 2)
    buffers[qigen_gemv._OUT].fill_(float("nan"))
    run = qigen_gemv.instructions()
    text = source(
        q, groups_in_unit(q, g, 71), DEFAULT, "avx2" if run.name == "avx2" else "portable"
    )
    found = sanitized.call(text, "qigen_gemv", *buffers, *sizes, isa=run, folder=tmp_path)
    y = found[qigen_gemv._OUT][:, :41]
    assert error(y, exact(x, tensor)) < 1e-6


# ---- parameters ----


def test_parameters_fill_the_first_level_cache(caplog):
    with caplog.at_level(logging.INFO, logger="lutlab.kernels.cpu.qigen.qigen_gemv"):
        blocks, searched = parameters((4096, 4096), 4, 128, cores=2)
    taken = 32 * blocks.m_b + 4 * blocks.m_b * blocks.t_b + 32 * blocks.t_b
    assert 0.9 < taken / (8 * caches()["l1"]) <= 1
    assert f" {taken} of " in caplog.text
    assert blocks.t_b * blocks.panel == 2048  # a core's share
    assert blocks.m_b % 128 == 0
    assert not searched
    assert "m_b=" in caplog.text
    assert "not searched here" in caplog.text


def test_search_keeps_the_fastest_for_this_machine(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(qigen_gemv, "_SEARCH_SIDE", 128)
    kernels = (MicroKernel(1, 1), MicroKernel(1, 7))
    monkeypatch.setattr(qigen_gemv, "micro_kernels", lambda bits: kernels)
    times = search(3)
    best = min(times, key=times.__getitem__)
    assert set(times) == set(kernels)
    blocks, searched = parameters((64, 64), 3, 32)
    assert searched
    assert (blocks.m_u, blocks.t_u) == (best.m_u, best.t_u)
    assert not parameters((64, 64), 4, 32)[1]


def test_a_micro_kernel_that_is_not_searched_counts_as_damage(tmp_path, monkeypatch, caplog):
    monkeypatch.undo()
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    file = qigen_gemv._parameter_file()
    for found in ([], {"4": {"m": 1}}, {"4": {"m_u": 0, "t_u": 4}}, {"7": {"m_u": 1, "t_u": 4}}):
        file.write_bytes(sealed(found, file.name))
        caplog.clear()
        assert not parameters((64, 64), 4, 32)[1]
        assert f"{file} is damaged (" in caplog.text
