"""Tuning: all candidates give the same product, the fastest is chosen, kept and found again."""

import pytest
import torch
from tests.kernels.weights import packed, uniform_tensor

from lutlab.codegen import isa
from lutlab.formats import uniform_rows
from lutlab.kernels import rows_tuning, uniform_gemv
from lutlab.kernels.rows_tuning import PANELS, PREFETCHES, Tuning

PLAIN = uniform_tensor(40, 1500, 4, 64)


def pack(panel):
    return uniform_rows.pack(PLAIN, panel)


def kernel():
    return uniform_gemv.kernel(pack(512), isa.detect())


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    """Times that are a function of the candidate, and a cache folder of the test's own."""
    built = kernel()
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))

    def times(kernel, weight, threads, cold_bytes, seconds):
        return {p: abs(p - 4096) + abs(weight.panel_columns - 1024) + 1.0 for p in PREFETCHES}

    monkeypatch.setattr(rows_tuning, "time_distances", times)
    return built


def test_the_fastest_pair_is_kept_for_its_shape_and_threads(made_up):
    assert rows_tuning.known(made_up, pack(512), 1) == Tuning()
    best = rows_tuning.tune(made_up, pack, threads=1)
    assert best == Tuning(panel_columns=1024, prefetch_bytes=4096)
    assert rows_tuning.known(made_up, pack(512), 1) == best
    assert rows_tuning.known(made_up, pack(512), 2) == Tuning()
    assert rows_tuning.known(made_up, packed(40, 1400, "codes", 4, 64), 1) == Tuning()
    assert rows_tuning.tune(made_up, pack, threads=2) == best
    assert rows_tuning.known(made_up, pack(512), 1) == best


@pytest.mark.parametrize("content", ["", "[1]", '{"a": 3}', '{"a": {"panel": 1}}'])
def test_a_damaged_file_counts_as_none(made_up, content):
    rows_tuning.tune(made_up, pack, threads=1)
    rows_tuning._file().write_text(content)
    assert rows_tuning.known(made_up, pack(512), 1) == Tuning()
    rows_tuning.tune(made_up, pack, threads=1)
    assert rows_tuning.known(made_up, pack(512), 1) != Tuning()


def test_real_times_of_every_distance():
    found = rows_tuning.time_distances(kernel(), pack(256), 1, cold_bytes=0, seconds=0)
    assert set(found) == set(PREFETCHES)
    assert all(seconds > 0 for seconds in found.values())


def test_candidates_give_the_same_product():
    x = torch.randn(2, 1500, generator=torch.Generator().manual_seed(0))
    expected = kernel().gemv(x, pack(512))
    for panel in PANELS:
        torch.testing.assert_close(kernel().gemv(x, pack(panel)), expected, rtol=1e-4, atol=1e-3)
