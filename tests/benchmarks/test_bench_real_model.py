"""The benchmark of a real model from end to end on a tiny one that talks."""

import json

import bench_real_model
import pytest
import torch
from tests.models.architectures import make
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab.base.specs import TextSpec
from lutlab.data import load_text
from lutlab.data.tokens import token_stream
from lutlab.models.load import load_tokenizer

ASKED = "--windows 1 --seqlen 24 --context 3 --tokens 2 --rounds 2 --answer 5 --threads 1"


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
def test_a_model_beside_its_quantized_folder(folders, monkeypatch):
    out = folders / "out.json"
    names = [str(folders / "two"), "--model", str(folders / "full"), "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["bench", *names, *ASKED.split()])
    threads = torch.get_num_threads()
    bench_real_model.main()
    torch.set_num_threads(threads)
    full, two = json.loads(out.read_text())["rows"]
    assert (full["name"], two["name"]) == ("full precision", "two")
    model, quantized = make("llama-2"), lutlab.load(folders / "two")
    tokenizer = load_tokenizer(folders / "two")
    said = lutlab.complete(quantized, tokenizer, bench_real_model.QUESTION, 5, chat=True)
    assert two["answer"] == said
    ids = token_stream(load_text(TextSpec("topics", "embedded")), tokenizer, 24)[None, :24]
    p, q = (one(input_ids=ids).logits[0].double().softmax(-1) for one in (model, quantized))
    expected = torch.nn.functional.kl_div(q.log(), p, reduction="batchmean").item()
    first, last = two["kld_along_blocks"]
    assert last == pytest.approx(expected, rel=1e-4)
    assert 0 < first != last
    assert two["memory"]["growth_gb"] > 0
    assert two["tokens_per_s"] > 0
