"""Records of multiple-choice data sets: both published forms of one, and damage that is named.

What lm-eval's own definitions make of them is tested in tests/evaluators/test_harness.py.
"""

import json

import pytest
from tests.base.refusals import refused

from lutlab.base.specs import Text
from lutlab.data import pairs, records, tasks
from lutlab.data.choices import ITEMS, item_rows
from lutlab.data.protocols import PROTOCOLS
from lutlab.data.tasks import CONTINUATIONS, DEFINITIONS, dataset_of, definition, folder, metrics_of

BOTH = [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}]
FILE_ARC = {"question": {"stem": "What?", "choices": BOTH}, "answerKey": "2"}
CHOICES = {"text": ["a", "b"], "label": ["1", "2"]}
HUB_ARC = {"question": "What?", "choices": CHOICES, "answerKey": "2"}
PIQA = {"goal": "g", "sol1": "a", "sol2": "b", "label": 1}
HELLASWAG = {"activity_label": "J", "ctx_a": "A.", "ctx_b": "b", "endings": ["x", "y"], "label": "1"}  # fmt: skip


def rows(dataset, record):
    return item_rows(dataset, [json.dumps(record)], "here")


def test_every_protocol_of_choices_has_its_records_and_every_text_of_examples_its_definition():
    datasets = {rule.dataset for rule in PROTOCOLS.values() if rule.kind == "choices"}
    assert datasets == {*(ITEMS.keys() - pairs.TEMPLATES), "continuations"}
    read = {name for name, rule in PROTOCOLS.items() if rule.kind in ("choices", "examples")}
    assert read == {*DEFINITIONS, CONTINUATIONS["task"]}
    assert all((folder() / path).is_file() for path in DEFINITIONS.values())


def test_files_and_the_hub_give_the_same_rows():
    assert rows("arc-easy", HUB_ARC | {"id": "x"}) == rows("arc-easy", FILE_ARC)
    assert rows("piqa", PIQA) == rows("piqa", {"id": 3, **PIQA, "label": "1"})
    done = {"query": "J: A. B", "choices": ["x", "y"], "gold": 1, "ind": 4}
    assert json.loads(rows("hellaswag", done)[0])["label"] == 1


@pytest.mark.parametrize(("dataset", "record"), [
    ("arc-easy", HUB_ARC | {"answerKey": "C"}),
    ("piqa", PIQA | {"label": -1}),
    ("piqa", {"goal": "g", "sol1": "a", "label": 0}),
    ("hellaswag", HELLASWAG | {"label": ""}),
    ("hellaswag", {"query": "q", "choices": ["x"], "gold": 1}),
    ("winogrande", {"sentence": "no blank", "option1": "a", "option2": "b", "answer": "1"}),
    ("piqa", "no record"),
    ("piqa", PIQA | {"sol2": None}),
    ("piqa", PIQA | {"label": True}),
    ("arc-easy", HUB_ARC | {"choices": {"text": [], "label": ["2"]}}),
    ("arc-easy", HUB_ARC | {"choices": {"text": ["a", 1], "label": ["1", "2"]}}),
    ("hellaswag", HELLASWAG | {"endings": "xy"}),
    ("hellaswag", {"query": "q", "choices": ["x", "y"], "gold": 1.0}),
])  # fmt: skip
def test_a_record_without_an_answer_is_named(dataset, record):
    refused(rf"line 1 of here is no item of {dataset}(.|\n)*fetch", rows, dataset, record)


@pytest.mark.parametrize("line", [
    json.dumps(PIQA)[:-5],
    "[" * 100_000,
    json.dumps(PIQA | {"label": 1}).replace('"label": 1', '"label": 1' + "0" * 5000),
    json.dumps(PIQA)[:-1] + ', "goal": "another"}',
    json.dumps(PIQA | {"goal": "half a pair \ud800"}),
    json.dumps(PIQA | {"label": float("nan")}),
], ids=["truncated", "deep", "huge", "twice", "surrogate", "nan"])  # fmt: skip
def test_a_line_that_is_no_json_of_ours_is_named(line):
    message = r"line 2 of here is no item of piqa \((Value|JSON|Type|Recur|Uni)"
    refused(message, item_rows, "piqa", [json.dumps(PIQA), line], "here")


def test_only_texts_of_examples_and_of_items_have_records():
    assert records(Text("lambada", ("a b", "c"), "", "", limit=1)) == [{"text": "a b"}]
    refused("'wikitext2' is one long text, which no", records, Text("wikitext2", ("a",), "", ""))


def test_tasks_are_found_by_their_name_without_lm_evals_index():
    assert dataset_of("boolq") == "aps/super_glue"  # in a folder and a file of other names
    assert metrics_of("boolq") == ("acc",)
    # Metrics of the file that it includes.
    assert metrics_of("arc_challenge") == ("acc", "acc_norm")
    texts = [tasks.text_of_task(name, None) for name in ("arc_challenge", "arc_easy")]
    assert texts[0].sha256 != texts[1].sha256
    assert metrics_of("wikitext") == ("word_perplexity", "byte_perplexity", "bits_per_byte")
    refused("lm-eval has no task 'bolq': did you mean 'boolq'", definition, "bolq")
    refused(r"'mmlu' is a group of lm-eval's tasks.*name its tasks", definition, "mmlu")


def test_a_definition_is_data_and_comes_from_lm_eval_alone(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    own = tmp_path / "trapped.yaml"
    own.write_text("task: trapped\ndoc_to_text: !function trap.run\n")
    assert tasks._read(own)[0] == {"task": "trapped", "doc_to_text": "trap.run"}
    monkeypatch.chdir(tmp_path)
    for name in ("trapped", "./trapped", "trapped.yaml", str(own)):
        refused("lm-eval has no task", definition, name)
    call = f"task: !!python/object/apply:os.mkdir ['{tmp_path / 'ran'}']"
    for content in (call, "- 1", "task: ["):
        own.write_text(content)
        refused(r"trapped\.yaml cannot be read as a definition", tasks._read, own)
    assert not (tmp_path / "ran").exists()
