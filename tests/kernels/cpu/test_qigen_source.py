"""The generated source: Eq. 4's candidates."""

import pytest

from lutlab.base.errors import LutlabError
from lutlab.kernels.cpu.qigen.qigen_gemv import MicroKernel, groups_in_unit, micro_kernels, source


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_candidates_are_those_of_eq_4(bits):
    unit = {2: 16, 3: 32, 4: 8}[bits]
    expected = {
        (m, t) for m in range(1, 17) for t in range(1, 17) if m + m * t + t <= 16 and unit % m == 0
    }
    assert {(k.m_u, k.t_u) for k in micro_kernels(bits)} == expected
    assert MicroKernel(2, 4) in micro_kernels(bits)


@pytest.mark.parametrize(
    ("bits", "g", "k", "expected"),
    [(4, -1, 64, 0), (4, 64, 64, 0), (4, 8, 64, 1), (3, 16, 64, 2), (3, 8, 64, 4), (2, 8, 64, 2)],
)
def test_forms_of_the_source(bits, g, k, expected):
    assert groups_in_unit(bits, g, k) == expected


@pytest.mark.parametrize("kernel", [MicroKernel(3, 1), MicroKernel(16, 1), MicroKernel(1, 0)])
def test_micro_kernels_that_cut_a_unit_are_refused(kernel):
    with pytest.raises(LutlabError, match="m_u must divide the 8 values"):
        source(4, 0, kernel, "avx2")
