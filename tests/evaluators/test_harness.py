"""lm-eval in process, and evaluators by it: against its own simple_evaluate, sums written out, and without scores."""

import importlib.metadata
import json
import math
import random
import statistics
from pathlib import Path
from types import SimpleNamespace

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import torch
from tests.base.refusals import refused
from tests.evaluators import items
from tests.evaluators.items import EXAMPLES, RECORDS, log_likelihood, repeating, text_of
from tests.hub_stand_in import HubStandIn
from tests.tiny_models import byte_tokenizer, tiny_llama, tiny_opt

from lutlab.base import registry
from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec, Text, TextSpec
from lutlab.data import load_text
from lutlab.evaluators.harness import scores, standard_error
from lutlab.evaluators.lambada import lambada
from lutlab.experiment.artifact.columns import free_columns
from lutlab.experiment.plan.ids import Resolved, cell_identity
from lutlab.experiment.report.compare import troubled
from lutlab.experiment.row.row import Data
from lutlab.experiment.row.run import text_of as source_of

# protocol -> lm-eval's definition, and the split it reads
OFFICIAL = {
    "piqa": ("piqa/piqa.yaml", "validation"),
    "hellaswag": ("hellaswag/hellaswag.yaml", "validation"),
    "winogrande": ("winogrande/default.yaml", "validation"),
    "arc-easy": ("arc/arc_easy.yaml", "test"),
    "lambada": ("lambada/lambada_openai.yaml", "test"),
}


def rows_text(protocol, *rows):
    return Text(protocol, tuple(map(json.dumps, rows)), "", "")


def plainly(model, tokenizer, folder, monkeypatch, bos):
    """Results of lm-eval's own simple_evaluate over files, task by task."""
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._yaml_loader import load_yaml

    tasks = []
    for name, (path, split) in OFFICIAL.items():
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in RECORDS[name]))
        splits = dict.fromkeys(("training", "validation", "test", "fewshot")) | {split: split}
        definition = load_yaml(Path(lm_eval.__file__).parent / "tasks" / path)
        definition |= {f"{part}_split": used for part, used in splits.items()}
        definition |= {"task": f"own-{name}", "dataset_path": "json", "dataset_name": None}
        tasks.append(definition | {"dataset_kwargs": {"data_files": {split: str(file)}}})
    evaluated = lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, add_bos_token=bos),
        tasks=tasks,
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=100,  # 0 gives no standard error of a mean either
    )
    return evaluated["results"], evaluated["samples"]


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
        names = {f"{metric}{end},none" for metric in ours.values for end in ("", "_stderr")}
        assert {key for key in plain if key.endswith(",none")} == names
    likelihoods = [sample["resps"][0][0][0] for sample in samples["own-lambada"]]
    assert ours.items["perplexity"] == pytest.approx(likelihoods, rel=1e-5)


@pytest.mark.parametrize("bos", [True, False])
def test_equals_one_ending_at_a_time_written_out(bos):
    """An oracle of a few lines, without lm-eval; a tokenizer without BOS and EOS as well."""
    model, tokenizer = tiny_opt(context=256), byte_tokenizer(bos)
    if not bos:
        tokenizer.bos_token = tokenizer.eos_token = None
    endings = ["She sleeps", "Then é", "x"]
    queries = [f"Ann counts {i} sheep." for i in range(9)]
    right = by_length = 0
    for i, query in enumerate(queries):
        sums = [log_likelihood(model, tokenizer, query, f"{query} {end}") for end in endings]
        norms = [value / len(end) for value, end in zip(sums, endings, strict=True)]
        right += sums.index(max(sums)) == i % 3
        by_length += norms.index(max(norms)) == i % 3
    rows = ({"query": q, "choices": endings, "label": i % 3} for i, q in enumerate(queries))
    own = scores(model, tokenizer, rows_text("hellaswag", *rows))
    assert own.values == {"acc": right / 9, "acc_norm": by_length / 9}


def test_a_file_that_was_cleaned_already_gives_the_same_prompts():
    import datasets
    from lm_eval.tasks.hellaswag.utils import process_docs

    plain = text_of("hellaswag")
    cleaned = process_docs(datasets.Dataset.from_list([json.loads(row) for row in plain.rows]))
    rows = ({k: row[k] for k in ("query", "choices")} | {"label": row["gold"]} for row in cleaned)
    texts = plain, rows_text("hellaswag", *rows)
    first, again = (scores(tiny_opt(context=256), byte_tokenizer(), text) for text in texts)
    assert first.items == again.items


def poisoned(model, tokenizer, text):
    """NaN wherever the model reads a token."""
    (token,) = tokenizer(text, add_special_tokens=False).input_ids

    def spoil(_module, _args, kwargs, output):
        output.logits[(kwargs.get("input_ids") == token).any(1)] = math.nan
        return output

    model.register_forward_hook(spoil, with_kwargs=True)
    return model


def test_examples_without_a_likelihood_are_left_out_and_named():
    tokenizer = byte_tokenizer()
    fine = ("She gave the boy an apple", "Two words", "every hen eats")
    spoilt = ("a Q stands here", "the end is too " + "z" * 70, "Q", "the cut one" * 9 + " here")
    model = poisoned(tiny_opt(), tokenizer, "Q")

    def scored(*texts, bos="tokenizer"):
        return scores(model, tokenizer, Text("lambada", texts, "", ""), bos)

    own, alone = scored(*spoilt, *fine), scored(*spoilt[2:], *fine)
    left_out = [own.facts[reason] for reason in ("not_finite", "unfit", "cut")]
    assert (left_out, own.n) == ([[0], [1], [3]], 5)
    assert own.items["perplexity"] == pytest.approx(alone.items["perplexity"], rel=1e-5)
    assert own.values["perplexity"] == pytest.approx(alone.values["perplexity"], rel=1e-5)
    refused(r"no example of 1 .*finite.*dtype=float32", scored, spoilt[0])
    refused(r"no example of 1 .* fits: .*context of 64", scored, spoilt[1])
    tokenizer.bos_token = tokenizer.eos_token = None
    bare = scored("word", *fine, bos="none")
    assert (bare.facts["unfit"], bare.n) == ([0], 3)


def test_one_ending_of_nan_does_not_count_as_right():
    tokenizer = byte_tokenizer()
    text = rows_text(
        "piqa",
        {"goal": "g", "sol1": "a %.", "sol2": "b", "label": 0},  # argmax takes the first NaN
        {"goal": "h", "sol1": "a", "sol2": "b", "label": 1},
    )
    own = scores(poisoned(tiny_llama(), tokenizer, "%"), tokenizer, text)
    assert (own.facts["not_finite"], own.n) == ([0], 1)
    assert "acc" not in own.errors, "one example has no standard error"


def test_nothing_of_the_callers_is_changed(capfd):
    model, tokenizer = tiny_opt().train(), byte_tokenizer()

    def state():
        draws = random.getstate(), numpy.random.get_state()[1].tolist()
        return *draws, torch.random.get_rng_state().tolist(), len(tokenizer), tokenizer.pad_token

    before = state()
    first = scores(model, tokenizer, text_of("hellaswag"))
    assert model.training
    assert state() == before
    assert tokenizer.pad_token is None
    assert capfd.readouterr() == ("", "")
    again = scores(model, tokenizer, text_of("hellaswag"), batch_size=3)
    assert again.values == first.values
    assert again.facts["documents_sha256"] == first.facts["documents_sha256"]


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
    again = [metrics.perplexity(draw.choices(x, k=400)) for _ in range(400)]
    assert numpy.std(again) == pytest.approx(expected, rel=0.15)


def test_what_cannot_be_asked_for_is_named():
    message = r"'lambada' is a list of examples.*take one of: piqa"
    refused(message, evaluate, "zero_shot", text_of("lambada"))
    refused("zero_shot needs a text", evaluate, "zero_shot", None)
    refused("not examples", evaluate, "lambada", Text("wikitext2", ("a",), "", ""))
    model, tokenizer = tiny_opt(), byte_tokenizer()
    refused("no examples", lambada, model, tokenizer, [])
    refused("bos 'both' is none of", scores, model, tokenizer, text_of("piqa"), bos="both")
    refused("there are no examples", scores, model, tokenizer, Text("lambada", (), "", ""))


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
    files = "[{split: train, path: rows.parquet}, {split: validation, path: rows.parquet}]"
    card = f"---\nconfigs:\n- config_name: boolq\n  data_files: {files}\n---\n"
    (repository / "README.md").write_text(card)
    columns = {"question": ["is it"] * 6, "passage": ["It is."] * 6, "label": [1] * 6}
    pyarrow.parquet.write_table(pyarrow.table(columns), repository / "rows.parquet")
    stand_in = HubStandIn({("datasets", "aps/super_glue"): repository})
    with stand_in as url:
        hub(url)
        own = scores(tiny_opt(), byte_tokenizer(), load_text(TextSpec("boolq", "lm_eval", limit=4)))
    assert any("rows.parquet" in request for request in stand_in.requests)
    assert own.values["acc"] in (0, 1)
    assert (own.n, own.facts["task"], own.facts["task_version"]) == (4, "boolq", 2.0)


def test_without_a_network_the_reason_is_one_line(hub):
    hub(None)
    text = load_text(TextSpec("boolq", "lm_eval"))
    message = r"^lm-eval cannot load its task 'boolq' with the rows of 'aps/super_glue'.*connect once[^\n]*\Z"
    refused(message, scores, tiny_opt(), byte_tokenizer(), text)


def evaluate(name, text, **options):
    own = registry.lookup("evaluator", name)(**options)
    return own.measure(items.subject(tiny_opt(), byte_tokenizer(), text, 2048))


def written_out(model, tokenizer, texts):
    """Log-likelihood of each last word, one example at a time."""
    contexts = (text[: text.rindex(" ")].rstrip() for text in texts)
    return [log_likelihood(model, tokenizer, *pair) for pair in zip(contexts, texts, strict=True)]


def test_zero_shots_measurement_says_what_it_rests_on():
    measured = evaluate("zero_shot", text_of("piqa"))
    assert measured.n == len(measured.samples) == 12
    accuracy = measured.values["accuracy"]
    assert accuracy == sum(measured.samples) / 12
    assert measured.errors["accuracy"] == pytest.approx(math.sqrt(accuracy * (1 - accuracy) / 11))
    assert measured.values.keys() == measured.errors.keys() == {"accuracy", "accuracy_norm"}
    facts = {
        "protocol": "piqa", "bos": 0, "seqlen": 64, "text_sha256": "rows",
        "task": "piqa", "task_version": 1.0, "batch_size": 16,
    }  # fmt: skip
    assert measured.facts.items() >= facts.items()
    assert evaluate("zero_shot", text_of("piqa"), bos="none").facts["bos"] is None


def test_equal_endings_have_one_accuracy():
    """lm-eval has no acc_norm of WinoGrande, and continuations have a definition of ours."""
    continuations = load_text(TextSpec("continuations", "embedded", limit=12))
    for text in (continuations, text_of("winogrande")):
        values = evaluate("zero_shot", text).values
        assert values["accuracy"] == values["accuracy_norm"]


def test_a_model_that_repeats_its_last_token_but_one():
    """Of contexts that one is right whose last letter ends; of last words, "b" after "b b" and no other."""
    row = '{"contexts": ["x b", "x c"], "ending": "b", "gold": %d}'
    text = Text("continuations", (row % 0, row % 0, row % 1), "", "")
    assert scores(*repeating(), text).items["acc"] == (1.0, 1.0, 0.0)
    own = lambada(*repeating(), ["x b b b b", "x b c d e"])
    assert own.accuracy == 0.5
    assert own.log_likelihoods[0] == pytest.approx(0, abs=1e-6)
    assert own.log_likelihoods[1] < -40


def test_a_task_under_lm_evals_name_is_the_same_measurement():
    ours, theirs = (evaluate(name, text_of("arc-easy")) for name in ("zero_shot", "lm_eval"))
    names = {"acc": "accuracy", "acc_norm": "accuracy_norm"}
    assert theirs.values == {name: ours.values[own] for name, own in names.items()}
    assert theirs.samples == ours.samples
    assert theirs.errors["acc"] == ours.errors["accuracy"]
    last_word = evaluate("lm_eval", text_of("lambada"))
    assert last_word.values.keys() == {"perplexity", "acc"}
    assert max(last_word.samples) < 0


def test_lambada_equals_one_example_at_a_time_written_out():
    model, tokenizer = tiny_llama(), byte_tokenizer()
    own = lambada(model, tokenizer, EXAMPLES).log_likelihoods
    assert len(own) == len(EXAMPLES)
    assert own[2:] == pytest.approx(written_out(model, tokenizer, EXAMPLES[2:]), rel=1e-5)
    own = lambada(model, tokenizer, ["fine here", "a " + "z" * 70, "so " * 40 + "on"])
    assert (own.n, own.left_out, own.cut) == (2, (1,), (2,)), "what does not fit is named"


def test_a_real_model_finds_a_word(shared):
    model, tokenizer = items.real_model(shared, "stories260K")
    texts = list(load_text(TextSpec("lambada", "folder", str(shared / "data"))).rows[:5])
    start = "Once upon a time there was a little girl named Lily. She loved to play."
    texts.append(f'{start} Her mom said, "Come here, Lily')
    own = lambada(model, tokenizer, texts)
    assert own.accuracy > 0
    assert own.log_likelihoods == pytest.approx(written_out(model, tokenizer, texts), rel=1e-4)


def test_lambadas_measurement_says_what_it_rests_on():
    measured = evaluate("lambada", text_of("lambada"))
    assert measured.n == len(measured.samples) == len(EXAMPLES)
    perplexity = measured.values["lambada_perplexity"]
    assert perplexity == pytest.approx(math.exp(-statistics.fmean(measured.samples)))
    error = perplexity * statistics.stdev(measured.samples) / math.sqrt(measured.n)
    assert measured.errors["lambada_perplexity"] == pytest.approx(error)
    assert 0 <= measured.values["lambada_accuracy"] <= 1
    assert (measured.facts["task"], measured.facts["bos"]) == ("lambada_openai", 0)


def test_columns_and_sources_of_tasks_and_the_note_of_what_was_left_out():
    columns = free_columns(["lm_eval:arc_easy", "lm_eval:lambada_openai", "lm_eval:wikitext"])
    texts = {"acc": "arc-easy", "perplexity": "lambada", "word_perplexity": "wikitext"}
    assert {c.metric: c.text for c in columns.values()} == texts
    assert [c.lower_is_better for c in columns.values()] == [False, True, True]
    refused("name one, as", free_columns, ["lm_eval"])
    data = Data(source="embedded", root=None, limit=None, stand_in={"piqa": "continuations"})
    sources = [source_of(name, data, tasks=True) for name in ("piqa", "lambada_openai", "wikitext")]
    embedded = [TextSpec(name, "embedded") for name in ("continuations", "lambada")]
    assert sources == [*embedded, TextSpec("wikitext", "lm_eval")]
    refused("unknown text 'wikitext'", source_of, "wikitext", data)
    facts = {"protocol": "piqa", "cut": [], "unfit": [3], "not_finite": list(range(9))}
    note = troubled(SimpleNamespace(facts=facts))
    assert note.endswith("1 unfit and left out (3), 9 not finite and left out (0, 1, 2, 3, 4, …)")
    assert troubled(SimpleNamespace(facts={"cut": []})) == troubled(None) == ""


def test_ids_hold_the_exact_version_of_lm_eval_where_it_measures():
    run = ModelRun(ModelSpec("s", "embedded", "opt-embedded-s"), "rtn", 4, 128)

    def libraries(name, text):
        column = EvalSpec(name, TextSpec(text, "embedded"))
        row = Resolved(run, {"": column}, texts={column.text: ""}, formats=("uniform",))
        return cell_identity(row, column)["libraries"]

    version = {"lm-eval": importlib.metadata.version("lm-eval")}
    assert libraries("zero_shot", "continuations") == libraries("ppl", "topics") | version
