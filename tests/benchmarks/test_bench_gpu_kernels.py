"""The GPU benchmarks from end to end on small shapes and models, the CPU in the GPU's place: no number counts."""

import json

import bench_gpu_choice
import bench_gpu_engine as engine
import bench_lut_gemv as bench
import bench_mixed_gemv
import gpu_contestants
import pytest
import torch
from tests.base.refusals import refused
from tests.models.architectures import make

import lutlab
from benchmarks import gpu_ceilings
from lutlab.base import sources
from lutlab.formats.mixed import PackedMixed
from lutlab.generate.graph import GraphStep
from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu import choice, variants
from lutlab.kernels.gpu.lut_gemv.variant import GPUS, H200, Case

LARGE = (64, 256)
KERNELS = ("optq", "paper", "lane_tables", "uniform_mma")
OTHERS = {"cublas": "cuBLAS", "paper": "paper bcq", "marlin": "Marlin int4", "gemlite": "gemlite W4"}  # fmt: skip


@pytest.fixture
def small(stand_in, monkeypatch, tmp_path):
    fractions = {(LARGE, 3): (0.88, 0.94)}
    stand_in(bench, SMALL=(48, 256), LARGE=LARGE, FRACTIONS=fractions, BATCHES=(1, 2))
    some = {name: variants.variant(name) for name in KERNELS}
    monkeypatch.setattr(variants, "variants", lambda op="lut_gemv": some)
    monkeypatch.setattr(choice, "cache_folder", lambda: tmp_path)  # of races; kernels stay built
    return tmp_path / "out"


@pytest.mark.slow
def test_goals_and_batch(small, run):
    text = run(bench, f"--part goals batch --rounds 4 --out {small}")
    for line in (
        "64x256, q=3, g=128, 1 row(s) of x; copy",
        "paper bcq reaches 1.000 of copy; must 0.88, stretch 0.94: stretch met",
        "times as fast as cuBLAS; must 4.2: ",
        "paper bcq is 1.00 times as fast as paper bcq; must 2.0: MISSED",
        "uniform: 2 row(s) of x take 1.00 of the time of one; at most 1.05: met",
        "dequantize bcq",
    ):
        assert line in text
    (result,) = json.loads((small / "lut_gemv_goals.json").read_text())["results"]
    assert all(row["relative_error"] < 3e-3 for row in result["rows"])
    sizes = {row["kernel"]: row["megabytes"] for row in result["rows"]}
    assert {"paper bcq", "optq uniform"} <= sizes.keys()
    assert sizes["uniform_mma uniform"] < sizes["lane_tables bcq"] < sizes["cuBLAS [N, K]"] / 4
    many = json.loads((small / "lut_gemv_batch.json").read_text())["results"][1]
    assert "cuBLAS" in many["rows"][0]["times"]


def test_what_was_measured_is_kept(small, run, monkeypatch):
    """A run that is stopped loses the race that it is in."""

    def part(rounds):
        yield {"shape": [1, 1]}
        raise KeyboardInterrupt

    monkeypatch.setitem(bench.PARTS, "groups", part)
    with pytest.raises(KeyboardInterrupt):
        run(bench, f"--part groups --out {small}")
    kept = json.loads((small / "lut_gemv_groups.json").read_text())
    assert kept["results"] == [{"shape": [1, 1]}]


@pytest.mark.parametrize(
    ("copies", "message"),
    [([1, torch.nan], "half is wrong by nan"), ([1.05, 1.05], r"half is wrong by [45]\..e-02")],
)
def test_a_wrong_product_or_copy_is_not_timed(copies, message):
    x, weight = torch.randn(1, 8).half(), torch.randn(4, 8).half()
    entrant = gpu_contestants.Entrant("half", 1, len(copies), lambda i: copies[i] * x @ weight.t())
    refused(message, gpu_contestants.checked, entrant, x, weight)


def row(kernel, us, fraction, **times):
    times = {OTHERS[name]: value for name, value in times.items()}
    kind = kernel.partition(" ")[2]
    return {"kernel": kernel, "kind": kind, "us": us, "fraction_of_copy": fraction, "times": times}


def verdicts(q, *rows, g=128, stream=0.97):
    about = {"shape": [*bench.LARGE], "q": q, "g": g, "m": 1, "read_fraction_of_copy": stream}
    return list(bench.verdicts(about | {"rows": rows}))


def test_goals_beside_others_in_words():
    own = row("bit_planes bcq", 70.0, 0.89, cublas=4.3, paper=1.9, marlin=1.31)
    worse = row("paper bcq", 133.0, 0.4, cublas=2.0, paper=1.0, marlin=0.6)
    codes = row("uniform_mma uniform", 65.0, 0.9, cublas=4.6, paper=2.05, marlin=1.4)
    baseline = row("optq uniform", 60.0, 0.9, cublas=5.0, paper=2.3, marlin=1.5)
    assert verdicts(3, worse, own, codes, baseline) == [
        "bit_planes bcq reaches 0.890 of copy; must 0.88, stretch 0.94: met",
        "bit_planes bcq is 4.30 times as fast as cuBLAS; must 4.2: met",
        "uniform_mma uniform is 4.60 times as fast as cuBLAS; must 4.2: met",
        "bit_planes bcq is 1.90 times as fast as paper bcq; must 2.0: MISSED",
        "uniform_mma uniform is 2.05 times as fast as paper bcq; must 2.0: met",
        "bit_planes bcq is 1.31 times as fast as Marlin int4; must 1.3: met",
        "uniform_mma uniform is 1.40 times as fast as Marlin int4; must 1.3: met",
    ]
    four = verdicts(4, row("bit_planes bcq", 90.0, 0.9, gemlite=1.19))
    assert "bit_planes bcq is 1.19 times as fast as gemlite W4; must 1.2: MISSED" in four
    assert "1.5 times as fast as torch int4: not judged, it did not run" in four


def test_a_slow_stream_moves_the_goal_and_short_groups_have_one_of_their_own():
    slow = row("bit_planes bcq", 70.0, 0.84)
    copy, stream, *_ = verdicts(3, slow, stream=0.86)
    assert copy.endswith("must 0.88, stretch 0.94: MISSED")
    assert stream == "a read-only stream reaches 0.860 itself; must 0.97 of it, 0.834: met"
    (floor,) = verdicts(3, slow, g=32)
    assert floor == "bit_planes bcq reaches 0.840 of its own floor; must 0.8: met"


@pytest.mark.parametrize(
    "module", [bench, bench_mixed_gemv, engine, bench_gpu_choice, gpu_ceilings]
)
def test_without_a_gpu_it_says_so(module, run, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        run(module, "")
    assert ended.value.code == 0
    assert "not run: no CUDA device" in capsys.readouterr().err


F16 = torch.float16


@pytest.mark.slow
def test_who_won_is_chosen_afterwards(stand_in, run, monkeypatch, tmp_path):
    speed = {"bit_planes": 2.0, "lane_tables": 1.0, "paper": 9.0, "dequantize ": 1.5}
    stand_in(
        bench_gpu_choice,
        products=lambda: iter([((48, 256), 3, 128, False, F16)]),
        ROWS=(1, 3),
        GpuTimer=lambda: lambda kernel, kind: (kernel.run(0), speed[kernel.name])[1],
    )
    some = [variants.variant(name) for name in ("bit_planes", "lane_tables", "paper")]
    monkeypatch.setattr(variants, "preferred", lambda: some)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a stand-in")
    monkeypatch.setattr(choice, "cache_folder", lambda: tmp_path)  # of races; kernels stay built
    run(bench_gpu_choice, f"--rounds 2 --out {tmp_path}")
    (race,) = json.loads((tmp_path / "gpu_choice.json").read_text())["races"]
    kept = {"dense": 1.5, "bit_planes": 2.0, "lane_tables": 1.0}
    assert race["seconds"] == {"1": kept | {"paper": 9.0}, "3": kept}, "paper fell behind"
    case = Case(1, 48, 256, 3, 128, F16, F16, F16)
    assert choice.choose(case, H200, "a stand-in") == ("lane_tables", choice.RACE)


def test_products_differ():
    products = list(bench_gpu_choice.products())
    assert len(products) == len(set(products)) == 28


PROBES = {"bmma_k128", "bmma_k256", "imma_k32", "hmma_k16", "add_floats", "add_half_pairs"}


@pytest.mark.parametrize(
    ("gpu", "lookups"),
    [*((gpu, "256 halves") for gpu in GPUS), (H200, "256 floats, a table a bank")],
)
def test_compiles(gpu, lookups):
    parameters = gpu_ceilings.PLAIN | gpu_ceilings.LOOKUPS[lookups]
    text = cuda.source("probe/ceilings.cu", parameters)
    resources = cuda.build(text, "test-probe", gpu.arch).resources
    assert set(resources) == PROBES | {"read_all", "look_up"}
    for takes in resources.values():
        assert (takes.spill_bytes, takes.stack_bytes) == (0, 0)
        assert takes.registers * gpu_ceilings.THREADS * gpu_ceilings.BLOCKS <= 65_536
        assert (takes.shared_bytes + 1024) * gpu_ceilings.BLOCKS <= gpu.sm_shared


@pytest.mark.parametrize("lookups", gpu_ceilings.LOOKUPS)
def test_tables_fit_and_banks_are_as_named(lookups):
    parameters = gpu_ceilings.PLAIN | gpu_ceilings.LOOKUPS[lookups]
    entries = parameters["ENTRIES"]
    assert entries * parameters["STRIDE"] <= min(32_768, 256 ** parameters["ENTRY"])
    assert entries == int(lookups.split()[0])
    assert parameters["PRIVATE"] == ("a table a bank" in lookups)


SHAPE = (48, 320)


@pytest.fixture
def mixed(stand_in, monkeypatch):
    goals = {"FRACTION": {SHAPE: 0.66}, "TIMES": {SHAPE: 4.2}, "MICROSECONDS": {SHAPE: 10.0}}
    stand_in(bench_mixed_gemv, SHAPES=(SHAPE,), **goals)
    monkeypatch.setattr(PackedMixed, "kernels", {"cuda": ("mixed_gemv_gpu",)})


@pytest.mark.slow
def test_shapes_with_their_goals(mixed, run, tmp_path):
    text = run(bench_mixed_gemv, f"--part shapes --rounds 2 --out {tmp_path}")
    assert "mixed_async 0.2 % fused reaches 1.000 of copy; must 0.66: met" in text
    assert "times as fast as cuBLAS; must 4.2: " in text
    assert "asynchrony makes the product 1.00 times as fast" in text
    (result,) = json.loads((tmp_path / "mixed_gemv_shapes.json").read_text())["results"]
    sizes = {row["kernel"]: row["megabytes"] for row in result["rows"]}
    assert sizes["mixed_sync 0 %"] < sizes["mixed_async 0.2 % fused"] < sizes["cuBLAS [N, K]"] / 2


@pytest.mark.slow
def test_widths_beside_what_their_bytes_predict(mixed, monkeypatch, capsys):
    monkeypatch.setattr(bench_mixed_gemv, "LARGE", (16, 768))
    few = {name: bench_mixed_gemv.WIDTHS[name] for name in ("2 bits", "4 bits", "2, 3, 4 bits")}
    monkeypatch.setattr(bench_mixed_gemv, "WIDTHS", few)
    (result,) = bench_mixed_gemv.widths(1)
    told = "2, 3, 4 bits take 1.000 of what their bytes predict between 2 and 4 bits; at most"
    assert told in capsys.readouterr().out
    assert len(result["rows"]) == 3


def test_the_cost_of_outliers_is_told(mixed, monkeypatch, capsys):
    """Bytes alone, cuSPARSE's half products being no part of a CPU's torch."""
    calls = []

    def entrants(shape, ratio, x, ways):
        calls.append((ratio, [how for _, how in ways]))
        names = [f"mixed_async {100 * ratio:g} %" + (f" {how}" if ratio else "") for _, how in ways]
        sizes = [100 + round(1000 * ratio) * (1 + at) for at in range(len(ways))]
        sized = zip(names, sizes, strict=True)
        return [
            bench_mixed_gemv.Entrant(name, size, 1, lambda i: None, kind="mixed")
            for name, size in sized
        ]

    monkeypatch.setattr(bench_mixed_gemv, "entrants", entrants)
    (_,) = bench_mixed_gemv.outliers(1)
    text = capsys.readouterr().out
    assert calls[2] == (0.002, ["fused", "cusparse"])
    assert "0.5% of outliers cost 5.0% fused; at most 5%: " in text
    assert "1.5% of outliers cost 15.0% fused, 30.0% by cuSPARSE" in text


PARTS_OF_KERNELS = {"lut_gemv_bit_planes": 2e-6, "fmha": 1e-6}
KINDS = {"matmul": 2e-6, "attention": 1e-6}


@pytest.fixture
def drawn(stand_in, monkeypatch):
    calls = []

    def synthetic(name, method, q, g, device, **options):
        model = make("opt")
        assert (sources.folder("conf") / "shapes" / name).is_dir()
        calls.append((name, method, q, g, options))
        return model if method == "none" else lutlab.quantize(model, "rtn", q=max(q, 2), g=8)

    stand_in(
        engine,
        LENGTH=32,
        timer=lambda step, kind: step.run(0) or step.bytes * 1e-9,
        gpu_parts=lambda run, calls: (run() and None) or (KINDS, PARTS_OF_KERNELS),
    )
    monkeypatch.setattr(lutlab, "synthetic", synthetic)
    monkeypatch.setattr(GraphStep, "obstacle", lambda model, cache: "")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 10**9)
    return calls


def test_rows_and_goals(drawn, run, monkeypatch, tmp_path):
    names = ("opt-30b", "opt-175b-q3")
    monkeypatch.setattr(engine, "PARTS", {name: engine.PARTS[name] for name in names})
    text = run(engine, f"--rounds 2 --out {tmp_path}")
    assert drawn == [
        ("opt-30b", "none", 16, -1, {}),
        ("opt-30b", "bcq", 3, 128, {"offset": True}),
        ("opt-175b", "bcq", 3, -1, {"offset": True}),
    ]
    rows = json.loads((tmp_path / "gpu_engine_opt-30b.json").read_text())["results"]
    assert [row["model"] for row in rows] == ["opt-30b float16", "opt-30b q3"]
    assert [row["of_bound"] for row in rows] == pytest.approx([1, 1])  # as the stream
    dense, ours = (sum(row["bytes"].values()) for row in rows)
    assert rows[1]["times_dense"] == pytest.approx(dense / ours)
    parts = rows[1]["breakdown_ms"]
    assert parts["matmul"] == pytest.approx(2e-3)
    assert sum(parts.values()) == pytest.approx(rows[1]["ms"])
    assert "1.000 of the bound; must 0.6, stretch 0.7: stretch met" in text
    assert "1.000 of the bound; must 0.75, stretch 0.82: stretch met" in text
    assert " of the paper's time; must 0.43, stretch 0.37: stretch met" in text
    assert text.count("times as fast as float16; must 2.6, stretch 3.2: ") == 1


def test_wrong_logits_are_not_timed(drawn, run, monkeypatch):
    step = GraphStep.step
    monkeypatch.setattr(GraphStep, "step", lambda self, ids: step(self, ids) * 1.1)
    refused("logits are wrong by 1", run, engine, "--rounds 2")


def test_a_goal_that_is_missed_is_said_so():
    assert engine.said("of the bound", 0.59, 0.6, 0.7).endswith("MISSED")
    missed = "0.440 of the paper's time; must 0.43, stretch 0.37: MISSED"
    assert engine.said("of the paper's time", -0.44, -0.43, -0.37) == missed
