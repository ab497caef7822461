"""Tuning: all candidates give the same product, the fastest is chosen, kept, found again, and used when packing."""

from dataclasses import replace

import pytest
import torch
from tests.kernels.checks import inputs
from tests.kernels.weights import packed, uniform_tensor

from lutlab.base.kept.files import sealed
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.codegen import isa
from lutlab.kernels.cpu import uniform_gemv
from lutlab.kernels.cpu.rows import rows_gemv, rows_tuning
from lutlab.kernels.cpu.rows.rows_tuning import PANELS, PREFETCHES, Tuning, known, tune
from lutlab.kernels.dispatch import prepare

PLAIN = PackedUniform.pack(uniform_tensor(40, 2500, 4, 64))
DEFAULT = Tuning(panel_columns=1024, prefetch_bytes=4096)
FASTEST = Tuning(panel_columns=512, prefetch_bytes=16384)


def pack(panel):
    return replace(uniform_gemv.empty(PLAIN), panel_columns=panel).filled(PLAIN)


def kernel():
    return rows_gemv.kernel(pack(512), isa.detect())


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    """Times that are a function of the candidate, and a tuning file of the test's own."""
    monkeypatch.setattr(rows_tuning, "_file", lambda: tmp_path / "tuning.sealed")
    calls = []

    def times(kernel, pack, panels, prefetches, **_):
        calls.append((panels, prefetches))
        pairs = [Tuning(panel, distance) for panel in panels for distance in prefetches]
        return {pair: 2.0 - (pair == FASTEST) for pair in pairs}

    monkeypatch.setattr(rows_tuning, "times", times)
    return calls


def test_the_fastest_pair_is_kept_for_its_shape_and_threads(made_up):
    assert known(kernel(), pack(512), 1) is None
    assert tune(kernel(), pack, DEFAULT, threads=1) == FASTEST
    assert made_up == [(PANELS, PREFETCHES)]
    assert known(kernel(), pack(1024), 1) == FASTEST
    assert known(kernel(), pack(512), 2) is None
    assert known(kernel(), packed(40, 1400, "codes", 4, 64), 1) is None
    assert tune(kernel(), pack, DEFAULT, threads=2) == FASTEST
    assert known(kernel(), pack(512), 1) == FASTEST


def test_the_default_stays_where_another_pair_is_hardly_faster(made_up, monkeypatch):
    hardly = {FASTEST: 1.0, DEFAULT: 1.01, Tuning(512, 2048): 1.5}
    monkeypatch.setattr(rows_tuning, "times", lambda *_, **__: hardly)
    assert tune(kernel(), pack, DEFAULT, threads=1) == DEFAULT
    hardly[DEFAULT] = 1.1
    assert tune(kernel(), pack, DEFAULT, threads=1) == FASTEST


@pytest.mark.parametrize("wrong", [{"panel_columns": 48}, {"prefetch_bytes": -1}, {"more": 1}])
def test_a_tuning_that_was_never_tried_counts_as_damage(made_up, caplog, wrong):
    tune(kernel(), pack, DEFAULT, threads=1)
    ((key, tuning),) = rows_tuning._read().items()
    file = rows_tuning._file()
    file.write_bytes(sealed({key: tuning | wrong}, file.name))
    assert known(kernel(), pack(512), 1) is None
    assert f"{file} is damaged (" in caplog.text
    tune(kernel(), pack, DEFAULT, threads=1)
    assert known(kernel(), pack(512), 1) == FASTEST


def test_a_layer_is_packed_as_tuned_and_tuned_only_when_asked(made_up, monkeypatch):
    x = inputs(2, 2500)
    untuned = prepare(PLAIN, "cpu")
    assert made_up == []
    assert untuned.rows.panel_columns == uniform_gemv.PANEL_COLUMNS
    monkeypatch.setenv("LUTLAB_TUNE", "1")
    tuned = prepare(PLAIN, "cpu")
    assert len(made_up) == 1
    monkeypatch.delenv("LUTLAB_TUNE")
    for chosen in (tuned, prepare(PLAIN, "cpu")):
        assert chosen.rows.panel_columns == FASTEST.panel_columns
        assert chosen.kernel.prefetch_bytes == FASTEST.prefetch_bytes
        assert torch.equal(chosen(x), untuned(x))
    assert len(made_up) == 1, "what was found is read, not looked for again"


def test_real_times_of_every_pair():
    times = rows_tuning.times(kernel(), pack, (256, 512), (0, 64), cold_bytes=0, seconds=0)
    assert set(times) == {Tuning(panel, distance) for panel in (256, 512) for distance in (0, 64)}
    assert all(seconds > 0 for seconds in times.values())


def test_candidates_give_the_same_product():
    x = inputs(2, 2500)
    expected = kernel().gemv(x, pack(512))
    for panel in PANELS:
        assert torch.equal(kernel().gemv(x, pack(panel)), expected)
    for distance in PREFETCHES:
        far = replace(kernel(), prefetch_bytes=distance)
        assert torch.equal(far.gemv(x, pack(512)), expected)
