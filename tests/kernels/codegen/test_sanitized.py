"""A byte beyond a buffer, or behaviour that C does not define, ends a run; what is right gives its result."""

import pytest
import torch
from tests.kernels.codegen import sanitized

from lutlab.kernels.codegen import isa

SCALE = """
void scale(const float *x, float *y, long n, float c, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < n; i++) y[i] = x[i] * c;
}
"""
PORTABLE = isa.ISAS[-1]


@pytest.mark.parametrize(("beyond", "found"), [(0, ""), (1, "heap-buffer-overflow")])
def test_a_program_with_sanitizers(tmp_path, beyond, found):
    x = torch.randn(7)
    if found:
        with pytest.raises(AssertionError, match=found):
            sanitized.call(SCALE, "scale", x, x, 8, 2.0, 1, isa=PORTABLE, folder=tmp_path)
    else:
        arguments = (x, torch.empty(7), 7, 2.0, 2)
        y = sanitized.call(SCALE, "scale", *arguments, isa=PORTABLE, folder=tmp_path)[1]
        assert torch.equal(y, x * 2)


def test_undefined_behaviour_ends_a_program(tmp_path):
    source = "int shift(int by) { return 1 << by; }\n"
    done = sanitized.program(
        source, "int main(void) { return shift(40) != 0; }", PORTABLE, tmp_path
    )
    assert "shift exponent 40" in done.stderr


@pytest.mark.parametrize(("count", "code"), [(7, 0), (8, 1)])
def test_python_with_sanitizers(tmp_path, monkeypatch, count, code):
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    done = sanitized.python(
        "import ctypes; from lutlab.kernels.codegen import isa, library;"
        f"handle = library.load({SCALE!r}, 'scale', isa.ISAS[-1], sanitize={sanitized.SANITIZERS});"
        "x = ctypes.CDLL(None).malloc; x.restype = ctypes.c_void_p; at = ctypes.c_void_p(x(28));"
        f"handle.scale(at, at, ctypes.c_long({count}), ctypes.c_float(0), 1)"
    )
    assert done.returncode == code, done.stderr
    assert ("heap-buffer-overflow" in done.stderr) == bool(code)


def test_no_element_at_all(tmp_path):
    x = torch.empty(0, 3)
    y = sanitized.call(SCALE, "scale", x, x, 0, 2.0, 1, isa=PORTABLE, folder=tmp_path)[1]
    assert y.shape == (0, 3)


def test_a_warning_is_an_error(tmp_path):
    source = "int f(int used, int unused) { return used; }\n"
    with pytest.raises(AssertionError, match="unused parameter"):
        sanitized.program(source, "int main(void) { return f(0, 0); }", PORTABLE, tmp_path)
