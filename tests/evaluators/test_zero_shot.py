"""Multiple choice and tasks by lm-eval's names, as evaluators; their numbers are tested in test_harness.py."""

import importlib.metadata
import math
from types import SimpleNamespace

import pytest
from tests.evaluators.items import repeating, text_of
from tests.tiny_models import RUN, byte_tokenizer, tiny_opt

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec, Subject, TextSpec
from lutlab.data import load_text
from lutlab.evaluators.harness import scores
from lutlab.experiment.artifact.columns import free_columns
from lutlab.experiment.plan.ids import Resolved, cell_identity
from lutlab.experiment.report.compare import troubled
from lutlab.experiment.row.row import Data
from lutlab.experiment.row.run import text_of as source_of


def evaluate(name, text, **options):
    subject = Subject(tiny_opt(), byte_tokenizer(), (), text, 2048, RUN)
    return registry.lookup("evaluator", name)(**options).measure(subject)


def test_the_measurement_says_what_it_rests_on():
    found = evaluate("zero_shot", text_of("piqa"))
    assert found.n == len(found.samples) == 12
    accuracy = found.values["accuracy"]
    assert accuracy == sum(found.samples) / 12
    assert found.errors["accuracy"] == pytest.approx(math.sqrt(accuracy * (1 - accuracy) / 11))
    assert found.values.keys() == found.errors.keys() == {"accuracy", "accuracy_norm"}
    facts = found.facts
    assert (facts["protocol"], facts["bos"], facts["seqlen"], facts["text_sha256"]) == (
        "piqa", 0, 64, "rows",
    )  # fmt: skip
    assert (facts["task"], facts["task_version"], facts["batch_size"]) == ("piqa", 1.0, 16)
    assert evaluate("zero_shot", text_of("piqa"), bos="none").facts["bos"] is None


def test_equal_endings_have_one_accuracy():
    """lm-eval has no acc_norm of WinoGrande, and continuations have a definition of ours."""
    text = load_text(TextSpec("continuations", "embedded", limit=12))
    for found in (evaluate("zero_shot", text), evaluate("zero_shot", text_of("winogrande"))):
        assert found.values["accuracy"] == found.values["accuracy_norm"]


def test_a_context_decides_among_equal_endings():
    """Logits that repeat the last but one token: of the contexts that one is right whose last letter ends."""
    model, tokenizer = repeating()
    text = load_text(TextSpec("continuations", "embedded"))
    row = '{"contexts": ["x b", "x c"], "ending": "b", "gold": %d}'
    rows = (row % 0, row % 0, row % 1)
    found = scores(model, tokenizer, type(text)("continuations", rows, "", ""))
    assert found.items["acc"] == (1.0, 1.0, 0.0)


def test_a_task_under_lm_evals_name_is_the_same_measurement():
    ours, theirs = (evaluate(name, text_of("arc-easy")) for name in ("zero_shot", "lm_eval"))
    assert theirs.values == {
        "acc": ours.values["accuracy"],
        "acc_norm": ours.values["accuracy_norm"],
    }
    assert theirs.samples == ours.samples
    assert theirs.errors["acc"] == ours.errors["accuracy"]
    last_word = evaluate("lm_eval", text_of("lambada"))
    assert last_word.values.keys() == {"perplexity", "acc"}
    assert all(value < 0 for value in last_word.samples)


def test_columns_and_sources_of_tasks():
    columns = free_columns(["lm_eval:arc_easy", "lm_eval:lambada_openai", "lm_eval:wikitext"])
    assert [c.metric for c in columns.values()] == ["acc", "perplexity", "word_perplexity"]
    assert [c.text for c in columns.values()] == ["arc-easy", "lambada", "wikitext"]
    assert [c.lower_is_better for c in columns.values()] == [False, True, True]
    with pytest.raises(LutlabError, match="name one, as"):
        free_columns(["lm_eval"])
    data = Data(source="embedded", root=None, limit=None, stand_in={"piqa": "continuations"})
    for name, spec in {
        "piqa": TextSpec("continuations", "embedded"),
        "lambada_openai": TextSpec("lambada", "embedded"),
        "wikitext": TextSpec("wikitext", "lm_eval"),
    }.items():
        assert source_of(name, data, tasks=True) == spec
    with pytest.raises(LutlabError, match="unknown text 'wikitext'"):
        source_of("wikitext", data)


def test_what_cannot_be_scored_is_named():
    with pytest.raises(LutlabError, match=r"'lambada' is a list of examples.*take one of: piqa"):
        evaluate("zero_shot", text_of("lambada"))
    with pytest.raises(LutlabError, match="zero_shot needs a text"):
        evaluate("zero_shot", None)


def test_ids_hold_the_exact_version_of_lm_eval_where_it_measures():
    run = ModelRun(ModelSpec("s", "embedded", "opt-embedded-s"), "rtn", 4, 128)
    asked = {"zero_shot": "continuations", "ppl": "topics"}
    found = {
        name: cell_identity(row, one)["libraries"]
        for name, text in asked.items()
        for one in [EvalSpec(name, TextSpec(text, "embedded"))]
        for row in [Resolved(run, {"": one}, texts={one.text: ""}, formats=("uniform",))]
    }
    assert found["zero_shot"] == found["ppl"] | {"lm-eval": importlib.metadata.version("lm-eval")}


def test_the_table_has_a_note_of_what_was_left_out():
    facts = {"protocol": "piqa", "cut": [], "unfit": [3], "not_finite": list(range(9))}
    said = troubled(SimpleNamespace(facts=facts))
    assert said.endswith("1 unfit and left out (3), 9 not finite and left out (0, 1, 2, 3, 4, …)")
    assert troubled(SimpleNamespace(facts={"cut": []})) == troubled(None) == ""
