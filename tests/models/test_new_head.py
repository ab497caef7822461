"""A new head on a decoder: drawn by its seed, read at the last token before the padding, refused elsewhere."""

import dataclasses

import pytest
import torch
from tests.base.refusals import refused
from tests.models.folders import loaded
from tests.tiny_models import RUN

from lutlab.base.specs import ModelSpec, Subject, Text
from lutlab.data.pairs import Pair
from lutlab.evaluators.glue import Glue, scores
from lutlab.models.families import task_of
from lutlab.models.load import fingerprint, task_here

TASK = "sequence_classification"
TEXTS = ["Return the size.", "True if it is", "A list of all names that were found", "None"]
PAIRS = [Pair(first, second, i % 3) for i, first in enumerate(TEXTS) for second in TEXTS]


def classifier(name, seed=0):
    return loaded(name, "embedded", seed, task=TASK)


@pytest.mark.parametrize("name", ["opt-embedded-s", "llama-embedded-s"])
def test_a_pair_scores_the_same_alone_and_among_longer_ones(name):
    model, tokenizer = classifier(name).model, classifier(name).tokenizer
    assert task_of(model) == TASK
    alone = [scores(model, tokenizer, [pair]) for pair in PAIRS]
    together = scores(model, tokenizer, PAIRS)
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-5)
    text = Text("missing-word", tuple(pair.row() for pair in PAIRS), "rows", "here")
    glue = Glue().measure(Subject(model, tokenizer, (), text, 64, RUN))
    right = torch.tensor([pair.label for pair in PAIRS]) == together.argmax(1)
    assert glue.values["accuracy"] == pytest.approx(right.float().mean())


def test_the_seed_draws_the_head_and_nothing_else():
    states = [classifier("opt-embedded-s", seed).model.state_dict() for seed in (1, 1, 2)]
    differing = [{n for n, x in states[0].items() if not torch.equal(x, s[n])} for s in states]
    assert differing == [set(), set(), {"score.weight"}]
    assert 0.01 < states[0]["score.weight"].std() < 0.03  # the config's init_std is 0.02


def test_a_new_head_is_another_model():
    plain = ModelSpec("m", "embedded", "opt-embedded-s")
    headed = dataclasses.replace(plain, task=TASK)
    assert fingerprint(headed) == f"{fingerprint(plain)}:{TASK}"
    assert (task_here(plain), task_here(headed)) == ("causal_lm", TASK)


@pytest.mark.parametrize(("name", "source", "fields", "message"), [
    ("bert", "embedded", {"task": TASK}, "'bert' is none"),
    ("opt", "embedded", {"task": "qa"}, "model.task=qa: give seq"),
    ("opt", "embedded", {"task": TASK, "stream": True}, "drop stream=true"),
    ("opt", "synthetic", {"task": TASK}, "drop model.source=syn"),
])  # fmt: skip
def test_what_has_no_place_for_a_new_head_is_refused(name, source, fields, message):
    refused(message, loaded, f"{name}-embedded-s", source, **fields)
