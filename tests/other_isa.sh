#!/usr/bin/env bash
# The tests of CPU kernels and of what runs on them, by the instruction set that this CPU would not choose: AVX-512's
# where it has AVX2 only, by SIMDe (tests/kernels/simde.py), and AVX2's where it has AVX-512.
#     tests/other_isa.sh .venv/bin/python
set -euo pipefail
cd "$(dirname "$0")/.."
other=avx512
! grep -qsw avx512f /proc/cpuinfo || other=avx2
LUTLAB_ISA=$other "$1" -m pytest -q -n 2 --dist worksteal tests/kernels/cpu tests/test_modules.py \
    tests/generate/test_cpu.py tests/generate/test_graph.py -m "not gpu" -k "not portable"
