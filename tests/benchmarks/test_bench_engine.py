"""The benchmarks of the engine and of prompts, from end to end on small models."""

import json
import shlex

import bench_engine
import bench_prefill
import pytest
import torch

from lutlab.kernels.codegen import compiler
from lutlab.measure.timing import RESIDENT, Contestant

RACE = "--models llama-embedded-s --formats uniform3 --threads 1 --context 4 --tokens 3 --rounds 2"
PRODUCT = "--shapes 96x256 --formats uniform4 --threads 1 --rows 1 40 --panels 64 --rounds 2"
PROMPT = "--model llama-embedded-s --formats bcq3 --threads 1 --rows 9 --rounds 1"


@pytest.fixture
def run(monkeypatch, tmp_path):
    try:
        compiler.find()
    except compiler.NoCompiler as error:
        pytest.skip(str(error))
    threads = torch.get_num_threads()

    def result(bench, arguments):
        out = tmp_path / "out.json"
        monkeypatch.setattr("sys.argv", ["bench", *shlex.split(arguments), "--out", str(out)])
        bench.main()
        (found,) = json.loads(out.read_text())["results"]
        return found

    yield result
    torch.set_num_threads(threads)


def test_the_engine_beside_what_is_installed(run):
    found = run(bench_engine, RACE)
    ours, *peers, dense = found["rows"]
    assert ours["name"] == "lutlab"
    assert ours["lutlab_is_times_as_fast"] == 1
    assert ours["facts"]["engine"] == "cpu_step"
    assert (ours["facts"]["head"], ours["facts"]["cache"]) == ("float16", "float16")
    assert all("llama.cpp q4_0" in peer["name"] for peer in peers)  # 128 inputs have no K type
    assert dense["name"] == "transformers float32"
    assert all(len(row["rounds_ms"]) == 2 for row in found["rows"])
    assert found["step_over_kernels"] > 1


def test_few_layers_are_scaled_round_by_round():
    def of(ms, size):
        return Contestant("dense", size, 1, print, {RESIDENT: [s * 1e-3 for s in ms]})

    whole = bench_engine.scaled([(1, of([3, 4], 10)), (3, of([7, 10], 30))], blocks=32)
    assert whole.rounds[RESIDENT] == pytest.approx([65e-3, 97e-3])
    assert whole.bytes == 320
    assert "from 1 and 3 layers" in whole.name


def test_products_and_prompts_by_all_ways(run, tmp_path):
    figure = tmp_path / "crossover.svg"
    found = run(bench_prefill, f"{PRODUCT} --figure {figure}")
    assert [row["rows"] for row in found["rows"]] == [1, 40]
    assert set(found["rows"][0]["ms"]) == set(bench_prefill.WAYS)
    assert figure.stat().st_size > 1000
    found = run(bench_prefill, PROMPT)
    assert set(found["rows"][0]["ms"]) == {"kernel", "panels", "dense"}


def test_a_crossover_is_where_the_other_way_stays_faster():
    rows = [
        {"rows": m, "ms": {"kernel": kernel, "panels": 10}}
        for m, kernel in ((1, 11), (16, 9), (64, 12), (256, 40))
    ]
    assert bench_prefill.crossover(rows, "panels") == 64
    assert bench_prefill.crossover(rows[:2], "panels") is None
