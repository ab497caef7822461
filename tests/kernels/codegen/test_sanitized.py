"""A byte beyond a buffer, or behaviour that C does not define, ends a run; what is right gives its result."""

import subprocess
import sys

import pytest
import torch
from tests.kernels.codegen import sanitized
from tests.kernels.codegen.sanitized import PORTABLE, SCALE

from lutlab.kernels.codegen import compiler


def scaled(x, y, n, folder, threads=1):
    return sanitized.call(SCALE, "scale", x, y, n, 2.0, threads, isa=PORTABLE, folder=folder)[1]


def test_a_program_with_sanitizers(tmp_path):
    x = torch.randn(7)
    assert torch.equal(scaled(x, torch.empty(7), 7, tmp_path, threads=2), x * 2)
    with pytest.raises(AssertionError, match="heap-buffer-overflow"):
        scaled(x, x, 8, tmp_path)
    assert scaled(torch.empty(0, 3), torch.empty(0, 3), 0, tmp_path).shape == (0, 3)


def test_undefined_behaviour_ends_a_program_and_a_warning_is_an_error(tmp_path):
    source = "int shift(int by) { return 1 << by; }\n"
    main = "int main(void) { return shift(40) != 0; }"
    done = sanitized.program(source, main, PORTABLE, tmp_path)
    assert "shift exponent 40" in done.stderr
    source = "int shift(int used, int unused) { return used; }\n"
    with pytest.raises(AssertionError, match="unused parameter"):
        sanitized.program(source, "int main(void) { return shift(0, 0); }", PORTABLE, tmp_path)


@pytest.mark.parametrize(("count", "code"), [(7, 0), (8, 1)])
def test_python_with_sanitizers(cache, monkeypatch, count, code):
    """With AddressSanitizer preloaded. Leaks are not looked for: Python itself leaves memory at its end."""
    program = (
        "import ctypes; from lutlab.kernels.codegen import isa, library;"
        f"handle = library.load({SCALE!r}, 'scale', isa.ISAS[-1], sanitize={sanitized.SANITIZERS});"
        "x = ctypes.CDLL(None).malloc; x.restype = ctypes.c_void_p; at = ctypes.c_void_p(x(28));"
        f"handle.scale(at, at, ctypes.c_long({count}), ctypes.c_float(0), 1)"
    )
    find = [*compiler.find().command, "-print-file-name=libasan.so"]
    asan = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setenv("LD_PRELOAD", asan)
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("heap-buffer-overflow" in done.stderr) == bool(code)
