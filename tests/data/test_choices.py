"""Multiple-choice items: what a prompt says, both published forms of a record, and damage that is named.

That the prompts are lm-eval's is tested in tests/evaluators/test_zero_shot.py, against lm-eval's own task files.
"""

import json

import pytest

from lutlab.data import choices
from lutlab.data.choices import TEMPLATES, Choice, item_rows
from lutlab.data.protocols import PROTOCOLS
from lutlab.errors import LutlabError
from lutlab.specs import Text

HUB_ARC = {
    "question": "What?",
    "choices": {"text": ["a", "b"], "label": ["1", "2"]},
    "answerKey": "2",
}
FILE_ARC = {
    "question": {
        "stem": "What?",
        "choices": [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}],
    },
    "answerKey": "2",
}
HUB_HELLASWAG = {
    "activity_label": "Jump", "ctx_a": "A boy runs.", "ctx_b": "the boy",
    "endings": ["[x] lands.", "jumps [title] And falls"], "label": "1",
}  # fmt: skip
DONE_HELLASWAG = {
    "query": "Jump: A boy runs. The boy",
    "choices": [" lands.", "jumps. And falls"],
    "gold": 1,
}


def item(dataset, record):
    rows = tuple(item_rows(dataset, [json.dumps(record)], "here"))
    return choices(Text(dataset, rows, "", ""))[0]


def test_every_protocol_of_choices_has_its_prompt_or_is_embedded():
    datasets = {rule.dataset for rule in PROTOCOLS.values() if rule.kind == "choices"}
    assert datasets == {*TEMPLATES, "continuations"}


def test_prompts_read_as_expected():
    question = "Question: What?\nAnswer:"
    assert item("arc-easy", HUB_ARC) == Choice((question, question), (" a", " b"), 1)
    piqa = {"goal": "Dry a jar", "sol1": "Use air", "sol2": "Use jam", "label": 0}
    assert item("piqa", piqa).contexts[0] == "Question: Dry a jar\nAnswer:"
    blank = {"sentence": "Ann hit Bob as _  was mad.", "option1": "Ann", "option2": "Bob"}
    contexts = ("Ann hit Bob as Ann", "Ann hit Bob as Bob")
    assert item("winogrande", blank | {"answer": "2"}) == Choice(contexts, (" was mad.",) * 2, 1)


@pytest.mark.parametrize(
    ("dataset", "hub", "file"),
    [("arc-challenge", HUB_ARC, FILE_ARC), ("hellaswag", HUB_HELLASWAG, DONE_HELLASWAG)],
)
def test_both_published_forms_make_the_same_item(dataset, hub, file):
    assert item(dataset, hub) == item(dataset, file)


@pytest.mark.parametrize(
    ("dataset", "record"),
    [
        ("arc-easy", HUB_ARC | {"answerKey": "C"}),
        ("piqa", {"goal": "g", "sol1": "a", "sol2": "b", "label": -1}),
        ("piqa", {"goal": "g", "sol1": "a"}),
        ("hellaswag", HUB_HELLASWAG | {"label": ""}),
        ("winogrande", {"sentence": "no blank", "option1": "a", "option2": "b", "answer": "1"}),
        ("piqa", "no record"),
    ],
)
def test_a_record_without_an_answer_is_named(dataset, record):
    with pytest.raises(LutlabError, match=rf"record 0 of here is no item of {dataset}(.|\n)*fetch"):
        item(dataset, record)


def test_other_kinds_have_no_items():
    with pytest.raises(LutlabError, match="'wikitext2' is one long text, not items"):
        choices(Text("wikitext2", ("a",), "", ""))
