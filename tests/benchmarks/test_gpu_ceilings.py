"""The probes of a GPU's ceilings compile for every architecture; without a GPU they say so."""

import pytest
import torch

from benchmarks import gpu_ceilings
from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu.lut_gemv.variant import GPUS, H200

PROBES = {"read_all", "look_up", "bmma_k128", "bmma_k256", "imma_k32", "hmma_k16"}


@pytest.mark.parametrize(
    ("gpu", "lookups"),
    [*((gpu, "256 halves") for gpu in GPUS), (H200, "256 floats, a table a bank")],
)
def test_compiles(gpu, lookups):
    parameters = gpu_ceilings.PLAIN | gpu_ceilings.LOOKUPS[lookups]
    text = cuda.source("probe/ceilings.cu", parameters)
    found = cuda.build(text, "test-probe", gpu.arch).resources
    assert set(found) == PROBES | {"add_floats", "add_half_pairs"}
    for takes in found.values():
        assert (takes.spill_bytes, takes.stack_bytes) == (0, 0)
        assert takes.registers * gpu_ceilings.THREADS * gpu_ceilings.BLOCKS <= 65_536
        assert (takes.shared_bytes + 1024) * gpu_ceilings.BLOCKS <= gpu.sm_shared


@pytest.mark.parametrize("lookups", gpu_ceilings.LOOKUPS)
def test_tables_fit_and_banks_are_as_named(lookups):
    parameters = gpu_ceilings.PLAIN | gpu_ceilings.LOOKUPS[lookups]
    entries = parameters["ENTRIES"]
    assert entries * parameters["STRIDE"] <= 32_768
    assert entries * parameters["STRIDE"] <= 256 ** parameters["ENTRY"]
    assert entries == int(lookups.split()[0])
    assert parameters["PRIVATE"] == ("a table a bank" in lookups)


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu_ceilings.py"])
    with pytest.raises(SystemExit) as ended:
        gpu_ceilings.main()
    assert ended.value.code == 0
    assert "not run: no CUDA device" in capsys.readouterr().err
