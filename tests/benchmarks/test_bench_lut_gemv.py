"""The GPU benchmark from end to end on small shapes, the CPU standing in for the GPU: its numbers mean nothing."""

import json

import bench_lut_gemv as bench
import gpu_contestants
import pytest
import torch
from tests.benchmarks.cpu_for_gpu import stand_in
from tests.kernels.gpu import test_lut_gemv

from lutlab.base.errors import LutlabError
from lutlab.kernels.gpu import choice, variants

gpu = test_lut_gemv.gpu
LARGE = (64, 256)
KERNELS = ("optq", "paper", "lane_tables", "uniform_mma")


@pytest.fixture
def small(gpu, monkeypatch, tmp_path):
    stand_in(bench, monkeypatch)
    monkeypatch.setattr(bench, "SMALL", (48, 256))
    monkeypatch.setattr(bench, "LARGE", LARGE)
    monkeypatch.setattr(bench, "FRACTIONS", {(LARGE, 3): (0.88, 0.94)})
    monkeypatch.setattr(bench, "BATCHES", (1, 2))
    some = {name: variants.variant(name) for name in KERNELS}
    monkeypatch.setattr(variants, "variants", lambda op="lut_gemv": some)
    monkeypatch.setattr(choice, "cache_folder", lambda: tmp_path)  # of races; kernels stay built
    return tmp_path


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["bench_lut_gemv.py", *map(str, arguments)])
    bench.main()


@pytest.mark.slow
def test_goals_and_batch(small, monkeypatch, capsys):
    run(monkeypatch, "--part", "goals", "batch", "--rounds", 4, "--out", small / "out")
    said = capsys.readouterr().out
    assert "64x256, q=3, g=128, 1 row(s) of x; copy" in said
    assert "paper bcq reaches 1.000 of copy; must 0.88, stretch 0.94: stretch met" in said
    assert "times as fast as cuBLAS; must 4.2: " in said
    assert "paper bcq is 1.00 times as fast as paper bcq; must 2.0: MISSED" in said
    assert "uniform: 2 row(s) of x take 1.00 of the time of one; at most 1.05: met" in said
    assert "dequantize bcq" in said
    found = json.loads((small / "out" / "lut_gemv_goals.json").read_text())
    (result,) = found["results"]
    kernels = {row["kernel"] for row in result["rows"]}
    assert {
        "paper bcq",
        "lane_tables bcq",
        "uniform_mma uniform",
        "optq uniform",
        "cuBLAS [N, K]",
    } <= kernels
    assert all(row["relative_error"] < 3e-3 for row in result["rows"])
    sizes = {row["kernel"]: row["megabytes"] for row in result["rows"]}
    assert sizes["uniform_mma uniform"] < sizes["lane_tables bcq"] < sizes["cuBLAS [N, K]"] / 4
    many = json.loads((small / "out" / "lut_gemv_batch.json").read_text())["results"][1]
    assert "cuBLAS" in many["rows"][0]["times"]


def test_what_was_measured_is_kept(small, monkeypatch):
    """A run that is stopped loses the race that it is in."""

    def part(rounds):
        yield {"shape": [1, 1]}
        raise KeyboardInterrupt

    monkeypatch.setitem(bench.PARTS, "groups", part)
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, "--part", "groups", "--out", small / "out")
    found = json.loads((small / "out" / "lut_gemv_groups.json").read_text())
    assert found["results"] == [{"shape": [1, 1]}]


def test_a_wrong_copy_is_not_timed():
    x, weight = torch.randn(1, 8).half(), torch.randn(4, 8).half()
    right, nan = x @ weight.t(), torch.full((1, 4), torch.nan)
    copies = [right, nan]
    with pytest.raises(LutlabError, match="a half is wrong by nan"):
        gpu_contestants.checked(
            gpu_contestants.Entrant("a half", 1, 2, copies.__getitem__), x, weight
        )


def a_row(kernel, kind, us, fraction, **times):
    names = {
        "cublas": "cuBLAS",
        "paper": "paper bcq",
        "marlin": "Marlin int4",
        "gemlite": "gemlite W4",
    }
    times = {names.get(name, name): value for name, value in times.items()}
    return {"kernel": kernel, "kind": kind, "us": us, "fraction_of_copy": fraction, "times": times}


def a_result(q, rows, g=128, stream=0.97):
    shape = list(bench.LARGE)
    return {"shape": shape, "q": q, "g": g, "m": 1, "read_fraction_of_copy": stream, "rows": rows}


def test_goals_beside_others_in_words():
    own = a_row("bit_planes bcq", "bcq", 70.0, 0.89, cublas=4.3, paper=1.9, marlin=1.31)
    worse = a_row("paper bcq", "bcq", 133.0, 0.4, cublas=2.0, paper=1.0, marlin=0.6)
    codes = a_row("uniform_mma uniform", "uniform", 65.0, 0.9, cublas=4.6, paper=2.05, marlin=1.4)
    baseline = a_row("optq uniform", "uniform", 60.0, 0.9, cublas=5.0, paper=2.3, marlin=1.5)
    assert list(bench.verdicts(a_result(3, [worse, own, codes, baseline]))) == [
        "bit_planes bcq reaches 0.890 of copy; must 0.88, stretch 0.94: met",
        "bit_planes bcq is 4.30 times as fast as cuBLAS; must 4.2: met",
        "uniform_mma uniform is 4.60 times as fast as cuBLAS; must 4.2: met",
        "bit_planes bcq is 1.90 times as fast as paper bcq; must 2.0: MISSED",
        "uniform_mma uniform is 2.05 times as fast as paper bcq; must 2.0: met",
        "bit_planes bcq is 1.31 times as fast as Marlin int4; must 1.3: met",
        "uniform_mma uniform is 1.40 times as fast as Marlin int4; must 1.3: met",
    ]
    four = a_row("bit_planes bcq", "bcq", 90.0, 0.9, gemlite=1.19)
    said = list(bench.verdicts(a_result(4, [four])))
    assert "bit_planes bcq is 1.19 times as fast as gemlite W4; must 1.2: MISSED" in said
    assert "1.5 times as fast as torch int4: not judged, it did not run" in said


def test_a_slow_stream_moves_the_goal_and_short_groups_have_one_of_their_own():
    rows = [a_row("bit_planes bcq", "bcq", 70.0, 0.84)]
    said = list(bench.verdicts(a_result(3, rows, stream=0.86)))
    assert said[0].endswith("must 0.88, stretch 0.94: MISSED")
    assert said[1] == "a read-only stream reaches 0.860 itself; must 0.97 of it, 0.834: met"
    (floor,) = bench.verdicts(a_result(3, rows, g=32))
    assert floor == "bit_planes bcq reaches 0.840 of its own floor; must 0.8: met"


def test_a_wrong_product_ends_the_run(small):
    x, weight = torch.randn(1, 8).half(), torch.randn(4, 8)
    wrong = gpu_contestants.Entrant("wrong", 1, 1, lambda i: 1.05 * x @ weight.half().t())
    with pytest.raises(LutlabError, match=r"wrong is wrong by [45]\..e-02"):
        gpu_contestants.checked(wrong, x, weight)


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch)
    assert ended.value.code == 0
    assert "not run: no CUDA device" in capsys.readouterr().err
