"""lm-eval in process: against its own simple_evaluate, against sums written out, and where examples have no score."""

import json
import math
import random
from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import torch
from tests.evaluators.items import RECORDS, text_of
from tests.hub_stand_in import HubStandIn
from tests.tiny_models import byte_tokenizer, tiny_llama, tiny_opt

from lutlab.base.errors import LutlabError
from lutlab.base.specs import Text, TextSpec
from lutlab.data import load_text
from lutlab.evaluators.harness import scores, standard_error

# protocol -> lm-eval's definition, and the split it reads
OFFICIAL = {
    "piqa": ("piqa/piqa.yaml", "validation"),
    "hellaswag": ("hellaswag/hellaswag.yaml", "validation"),
    "winogrande": ("winogrande/default.yaml", "validation"),
    "arc-easy": ("arc/arc_easy.yaml", "test"),
    "lambada": ("lambada/lambada_openai.yaml", "test"),
}
LOCAL = """
include: {path}
task: {name}
dataset_path: json
dataset_name: null
training_split: null
fewshot_split: null
{unused}_split: null
dataset_kwargs: {{data_files: {{{split}: {file}}}}}
"""


def plainly(model, tokenizer, folder, monkeypatch, bos):
    """Results of lm-eval's own simple_evaluate over files, task by task."""
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    for name, (path, split) in OFFICIAL.items():
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in RECORDS[name]))
        task = {
            "path": Path(lm_eval.__file__).parent / "tasks" / path,
            "name": f"own-{name}",
            "split": split,
            "unused": "validation" if split == "test" else "test",
            "file": file,
        }
        (folder / f"{name}.yaml").write_text(LOCAL.format(**task))
    found = lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, add_bos_token=bos),
        tasks=[f"own-{name}" for name in OFFICIAL],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=100,  # 0 gives no standard error of a mean either
    )
    return found["results"], found["samples"]


# lm-eval and its dependencies warn about their own futures; what they compute is what is compared
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "bos", "theirs"), [(tiny_opt, "tokenizer", None), (tiny_llama, "none", False)]
)
def test_agrees_with_simple_evaluate(make, bos, theirs, tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    model = make(context=96)
    results, samples = plainly(model, byte_tokenizer(), tmp_path, monkeypatch, theirs)
    for name in OFFICIAL:
        ours, plain = scores(model, byte_tokenizer(), text_of(name), bos), results[f"own-{name}"]
        assert ours.n == plain["sample_len"]
        for metric, value in ours.values.items():
            assert value == pytest.approx(plain[f"{metric},none"], rel=1e-4), (name, metric)
            if metric.startswith("acc"):
                assert value == plain[f"{metric},none"]
                assert ours.errors[metric] == pytest.approx(plain[f"{metric}_stderr,none"])
        assert {key.partition(",")[0] for key in plain if key.endswith(",none")} == {
            *ours.values, *(f"{metric}_stderr" for metric in ours.values)
        }  # fmt: skip
    likelihoods = [sample["resps"][0][0][0] for sample in samples["own-lambada"]]
    assert ours.items["perplexity"] == pytest.approx(likelihoods, rel=1e-5)


@pytest.mark.parametrize("bos", [True, False])
def test_equals_one_ending_at_a_time_written_out(bos):
    """An oracle of a few lines, without lm-eval; a tokenizer without BOS and EOS as well."""
    model, tokenizer = tiny_opt(context=256).eval(), byte_tokenizer(bos)
    if not bos:
        tokenizer.bos_token = tokenizer.eos_token = None
    rows = [
        {
            "query": f"Ann counts {i} sheep.",
            "choices": ["She sleeps", "Then é", "x"],
            "label": i % 3,
        }
        for i in range(9)
    ]
    right = by_length = 0
    for row in rows:
        found = []
        for ending in row["choices"]:
            ids = torch.tensor([tokenizer(f"{row['query']} {ending}").input_ids])
            start = len(tokenizer(row["query"]).input_ids)
            with torch.no_grad():
                log_p = model(ids).logits[0].double().log_softmax(-1)
            found.append(sum(log_p[i - 1, ids[0, i]].item() for i in range(start, ids.shape[1])))
        norms = [value / len(e) for value, e in zip(found, row["choices"], strict=True)]
        right += found.index(max(found)) == row["label"]
        by_length += norms.index(max(norms)) == row["label"]
    text = Text("hellaswag", tuple(map(json.dumps, rows)), "", "")
    assert scores(model, tokenizer, text).values == {"acc": right / 9, "acc_norm": by_length / 9}


def test_a_file_that_was_cleaned_already_gives_the_same_prompts():
    import datasets
    from lm_eval.tasks.hellaswag.utils import process_docs

    plain = text_of("hellaswag")
    cleaned = process_docs(datasets.Dataset.from_list([json.loads(row) for row in plain.rows]))
    done = [
        {"query": row["query"], "choices": row["choices"], "label": row["gold"]} for row in cleaned
    ]
    model, tokenizer = tiny_opt(context=256), byte_tokenizer()
    other = scores(model, tokenizer, Text("hellaswag", tuple(map(json.dumps, done)), "", ""))
    assert other.items == scores(model, tokenizer, plain).items


def poisoned(model, token):
    """NaN wherever the model reads a token."""

    def spoil(_module, _args, kwargs, output):
        output.logits[(kwargs.get("input_ids") == token).any(1)] = math.nan
        return output

    model.register_forward_hook(spoil, with_kwargs=True)
    return model


def test_examples_without_a_likelihood_are_left_out_and_named():
    tokenizer = byte_tokenizer()
    fine = ("She gave the boy an apple", "Two words", "every hen eats")
    spoilt = ("a Q stands here", "the end is too " + "z" * 70, "Q", "the cut one" * 9 + " here")
    token = tokenizer("Q", add_special_tokens=False).input_ids[0]
    model = poisoned(tiny_opt(), token)

    def of(*texts):
        return scores(model, tokenizer, Text("lambada", texts, "", ""))

    found, alone = of(*spoilt, *fine), of(*spoilt[2:], *fine)
    assert (found.facts["not_finite"], found.facts["unfit"]) == ([0], [1])
    assert (found.facts["cut"], found.n) == ([3], 5)
    assert found.items["perplexity"] == pytest.approx(alone.items["perplexity"], rel=1e-5)
    assert found.values["perplexity"] == pytest.approx(alone.values["perplexity"], rel=1e-5)
    with pytest.raises(LutlabError, match=r"no example of 1 .*finite.*dtype=float32"):
        of(spoilt[0])
    with pytest.raises(LutlabError, match=r"no example of 1 .* fits: .*context of 64"):
        of(spoilt[1])
    tokenizer.bos_token = tokenizer.eos_token = None
    bare = scores(model, tokenizer, Text("lambada", ("word", *fine), "", ""), "none")
    assert (bare.facts["unfit"], bare.n) == ([0], 3)


def test_one_ending_of_nan_does_not_count_as_right():
    tokenizer = byte_tokenizer()
    rows = [
        {"goal": "g", "sol1": "a %.", "sol2": "b", "label": 0},  # argmax takes the first NaN
        {"goal": "h", "sol1": "a", "sol2": "b", "label": 1},
    ]
    text = Text("piqa", tuple(map(json.dumps, rows)), "", "")
    token = tokenizer("%", add_special_tokens=False).input_ids[0]
    found = scores(poisoned(tiny_llama(), token), tokenizer, text)
    assert (found.facts["not_finite"], found.n) == ([0], 1)
    assert "acc" not in found.errors, "one example has no standard error"


def test_nothing_of_the_callers_is_changed(capfd):
    model, tokenizer = tiny_opt().train(), byte_tokenizer()
    size = len(tokenizer)
    states = random.getstate(), numpy.random.get_state()[1].tolist(), torch.random.get_rng_state()
    first = scores(model, tokenizer, text_of("hellaswag"))
    assert model.training
    assert (tokenizer.pad_token, len(tokenizer)) == (None, size)
    assert random.getstate() == states[0]
    assert numpy.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.random.get_rng_state(), states[2])
    assert capfd.readouterr() == ("", "")
    again = scores(model, tokenizer, text_of("hellaswag"), batch_size=3)
    assert (again.values, again.facts["documents_sha256"]) == (
        first.values, first.facts["documents_sha256"],
    )  # fmt: skip


def test_standard_errors_of_ratios_are_those_of_a_mean_where_all_weigh_the_same():
    from lm_eval.api import metrics

    draw = random.Random(0)
    x = [draw.gauss(-2, 1) for _ in range(400)]
    pairs = [(5 * value, 5) for value in x]
    ppl = metrics.perplexity(x)
    expected = standard_error(metrics.perplexity, x, ppl)
    assert standard_error(metrics.weighted_perplexity, pairs, ppl) == pytest.approx(expected)
    bits = standard_error(metrics.bits_per_byte, pairs, 0)
    assert bits * math.log(2) * ppl == pytest.approx(expected)
    again = [metrics.perplexity([x[draw.randrange(400)] for _ in range(400)]) for _ in range(400)]
    assert numpy.std(again) == pytest.approx(expected, rel=0.15)


def test_what_cannot_be_asked_for_is_named():
    with pytest.raises(LutlabError, match="bos 'both' is none of"):
        scores(tiny_opt(), byte_tokenizer(), text_of("piqa"), bos="both")
    with pytest.raises(LutlabError, match="there are no examples"):
        scores(tiny_opt(), byte_tokenizer(), Text("lambada", (), "", ""))


CARD = """---
configs:
- config_name: boolq
  data_files: [{split: train, path: rows.parquet}, {split: validation, path: rows.parquet}]
---
"""


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub of its own with empty caches, in this process: (set its address, or None for offline)."""
    import datasets
    from huggingface_hub import constants

    def at(url):
        for config, name in ((constants, "ENDPOINT"), (datasets.config, "HF_ENDPOINT")):
            monkeypatch.setattr(config, name, url)
        template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        for config in (constants, datasets.config):
            monkeypatch.setattr(config, "HF_HUB_OFFLINE", url is None)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")

    return at


def test_rows_that_lm_eval_fetches(hub, tmp_path):
    repository = tmp_path / "super_glue"
    repository.mkdir()
    (repository / "README.md").write_text(CARD)
    columns = {"question": ["is it"] * 6, "passage": ["It is."] * 6, "label": [1] * 6}
    pyarrow.parquet.write_table(pyarrow.table(columns), repository / "rows.parquet")
    stand_in = HubStandIn({("datasets", "aps/super_glue"): repository})
    with stand_in as url:
        hub(url)
        text = load_text(TextSpec("boolq", "lm_eval", limit=4))
        found = scores(tiny_opt(), byte_tokenizer(), text)
    assert any("rows.parquet" in request for request in stand_in.requests)
    assert (found.n, found.values["acc"] in (0, 1)) == (4, True)
    assert (found.facts["task"], found.facts["task_version"]) == ("boolq", 2.0)


def test_without_a_network_the_reason_is_one_line(hub):
    hub(None)
    with pytest.raises(LutlabError) as caught:
        scores(tiny_opt(), byte_tokenizer(), load_text(TextSpec("boolq", "lm_eval")))
    said = str(caught.value)
    assert said.startswith("lm-eval cannot load its task 'boolq' with the rows of 'aps/super_glue'")
    assert "connect once" in said
    assert "\n" not in said
