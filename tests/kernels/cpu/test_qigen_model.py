"""Eq. 5 by integer programming equals trying every block; caches are read as Linux writes them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lutlab.kernels.cpu.qigen.qigen_model import cache_blocks, caches, candidates, footprint


@settings(deadline=None, max_examples=40)
@given(
    k=st.integers(1, 500), n=st.integers(1, 700), t_u=st.integers(1, 4), cores=st.integers(1, 3),
    step=st.sampled_from([8, 16, 32, 128]), bits=st.integers(2, 4), gamma=st.integers(1000, 300_000),
)  # fmt: skip
def test_the_program_finds_what_brute_force_finds(k, n, t_u, cores, step, bits, gamma):
    options = tuple(candidates(n, 8 * t_u, cores))
    m_b, t_b = cache_blocks(k, options, step, bits, gamma)
    steps = range(step, k + step, step)
    every = {(m, t): footprint(m, t, bits) for t in options for m in steps}
    fitting = [taken for taken in every.values() if taken <= gamma]
    if fitting:
        assert every[m_b, t_b] == max(fitting)
    else:
        assert (m_b, t_b) == (step, min(options))


def test_a_layer_that_fits_whole_is_one_block_a_core():
    assert cache_blocks(64, tuple(candidates(64, 32, 2)), 8, 4, 10**9) == (64, 32)


def test_candidates_divide_a_cores_share():
    assert candidates(4096, 32, 2) == [32 * d for d in (1, 2, 4, 8, 16, 32, 64)]
    assert candidates(33, 16, 2) == [16, 32]  # three strips, two a core
    assert candidates(1, 8, 64) == [8]


def cache_entry(folder: Path, index: int, level: str, kind: str, size: str) -> None:
    entry = folder / f"index{index}"
    entry.mkdir()
    for name, value in (("level", level), ("type", kind), ("size", size)):
        (entry / name).write_text(value + "\n")


def test_caches_as_linux_writes_them(tmp_path):
    cache_entry(tmp_path, 0, "1", "Data", "48K")
    cache_entry(tmp_path, 1, "1", "Instruction", "64K")
    cache_entry(tmp_path, 2, "2", "Unified", "1024K")
    cache_entry(tmp_path, 3, "3", "Unified", "32M")
    sizes = {"l1": 48 * 2**10, "l2": 2**20, "l3": 32 * 2**20}
    assert caches(tmp_path) == sizes | {"origin": "sysfs"}


@pytest.mark.parametrize("broken", ["", "none", "K"])
def test_what_the_system_does_not_say_is_assumed_and_said(tmp_path, broken):
    cache_entry(tmp_path, 0, "1", "Data", "48K")
    cache_entry(tmp_path, 1, "2", "Unified", broken)
    assumed = caches(tmp_path)
    assert (assumed["l1"], assumed["origin"]) == (48 * 2**10, "assumed")
    assert assumed["l2"] > 0
    assert caches(tmp_path / "nothing")["l1"] == 32 * 2**10
