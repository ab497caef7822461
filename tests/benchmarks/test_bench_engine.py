"""The benchmarks of the engine and of prompts, from end to end on small models."""

import bench_engine
import bench_prefill
import bench_real_model
import pytest
import torch
from tests.models.architectures import make
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab.base.specs import TextSpec
from lutlab.data import load_text
from lutlab.data.tokens import token_stream
from lutlab.measure.timing import RESIDENT, Contestant
from lutlab.models.load import load_tokenizer

RACE = "--models llama-embedded-s --formats uniform3 --threads 1 --context 4 --tokens 3 --rounds 2"
PRODUCT = "--shapes 96x256 --formats uniform4 --threads 1 --rows 1 40 --panels 64 --rounds 2"
PROMPT = "--model llama-embedded-s --formats bcq3 --threads 1 --rows 9 --rounds 1"


pytestmark = pytest.mark.usefixtures("compiled")


def test_the_engine_beside_what_is_installed(measured):
    (result,) = measured(bench_engine, RACE)["results"]
    ours, *peers, dense = result["rows"]
    assert ours["name"] == "lutlab"
    assert ours["lutlab_is_times_as_fast"] == 1
    facts = {"engine": "cpu_step", "head": "float16", "cache": "float16"}
    assert ours["facts"] == ours["facts"] | facts
    assert all("llama.cpp q4_0" in peer["name"] for peer in peers)  # 128 inputs have no K type
    assert dense["name"] == "transformers float32"
    assert all(len(row["rounds_ms"]) == 2 for row in result["rows"])
    assert result["step_over_kernels"] > 1


def test_few_layers_are_scaled_round_by_round():
    few, more = (
        Contestant("dense", size, 1, print, {RESIDENT: seconds})
        for size, seconds in ((10, [3e-3, 4e-3]), (30, [7e-3, 10e-3]))
    )
    whole = bench_engine.scaled([(1, few), (3, more)], blocks=32)
    assert whole.rounds[RESIDENT] == pytest.approx([65e-3, 97e-3])
    assert whole.bytes == 320
    assert "from 1 and 3 layers" in whole.name


def test_products_and_prompts_by_all_ways(measured, tmp_path):
    figure = tmp_path / "crossover.svg"
    (result,) = measured(bench_prefill, f"{PRODUCT} --figure {figure}")["results"]
    rows = result["rows"]
    assert [row["rows"] for row in rows] == [1, 40]
    assert set(rows[0]["ms"]) == set(bench_prefill.WAYS)
    assert figure.stat().st_size > 1000
    (prompt,) = measured(bench_prefill, PROMPT)["results"]
    assert set(prompt["rows"][0]["ms"]) == {"kernel", "panels", "dense"}


def test_a_crossover_is_where_the_other_way_stays_faster():
    times = {1: 11, 16: 9, 64: 12, 256: 40}
    rows = [{"rows": m, "ms": {"kernel": ms, "panels": 10}} for m, ms in times.items()]
    assert bench_prefill.crossover(rows, "panels") == 64
    assert bench_prefill.crossover(rows[:2], "panels") is None


LINE = "--windows 1 --seqlen 24 --context 3 --tokens 2 --rounds 2 --answer 5 --threads 1"


@pytest.fixture
def folders(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }} so"
    model = make("llama-2")
    model.save_pretrained(tmp_path / "full")
    tokenizer.save_pretrained(tmp_path / "full")
    lutlab.quantize(model, "rtn", q=2, g=16)
    lutlab.save(model, tmp_path / "two", tokenizer)
    return tmp_path


@pytest.mark.slow  # a process for the memory of each
def test_a_model_beside_its_quantized_folder(folders, measured):
    line = f"{folders / 'two'} --model {folders / 'full'} {LINE}"
    full, two = measured(bench_real_model, line)["rows"]
    assert (full["name"], two["name"]) == ("full precision", "two")
    model, quantized = make("llama-2"), lutlab.load(folders / "two")
    tokenizer = load_tokenizer(folders / "two")
    answer = lutlab.complete(quantized, tokenizer, bench_real_model.QUESTION, 5, chat=True)
    assert two["answer"] == answer
    ids = token_stream(load_text(TextSpec("topics", "embedded")), tokenizer, 24)[None, :24]
    p, q = (m(input_ids=ids).logits[0].double().softmax(-1) for m in (model, quantized))
    expected = torch.nn.functional.kl_div(q.log(), p, reduction="batchmean").item()
    first, last = two["kld_along_blocks"]
    assert last == pytest.approx(expected, rel=1e-4)
    assert 0 < first != last
    assert two["memory"]["growth_gb"] > 0
    assert two["tokens_per_s"] > 0
