"""A new head on a decoder: drawn by its seed, read at the last token before the padding, refused elsewhere."""

import dataclasses

import pytest
import torch
from tests.tiny_models import RUN

from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelSpec, Subject, Text
from lutlab.data.pairs import Pair
from lutlab.evaluators.glue import Glue, scores
from lutlab.models.families import task_of
from lutlab.models.load import fingerprint, load_model, task_here

TASK = "sequence_classification"
TEXTS = ["Return the size.", "True if it is", "A list of all names that were found", "None"]
PAIRS = [Pair(first, second, i % 3) for i, first in enumerate(TEXTS) for second in TEXTS]


def classifier(name, seed=0):
    wanted = ModelSpec(name, "embedded", name, task=TASK)
    return load_model(wanted, torch.float32, "cpu", seed)


@pytest.mark.parametrize("name", ["opt-embedded-s", "llama-embedded-s"])
def test_a_pair_scores_the_same_alone_and_among_longer_ones(name):
    found = classifier(name)
    assert task_of(found.model) == TASK
    alone = [scores(found.model, found.tokenizer, [pair]) for pair in PAIRS]
    together = scores(found.model, found.tokenizer, PAIRS)
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-5)
    text = Text("missing-word", tuple(pair.row() for pair in PAIRS), "rows", "here")
    said = Glue().measure(Subject(found.model, found.tokenizer, (), text, 64, RUN))
    right = [pair.label for pair in PAIRS] == together.argmax(1)[:, None].T.numpy()
    assert said.values["accuracy"] == pytest.approx(right.mean())


def test_the_seed_draws_the_head_and_nothing_else():
    first, again, other = (
        classifier("opt-embedded-s", seed).model.state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(one, again[name]) for name, one in first.items())
    differing = [name for name, one in first.items() if not torch.equal(one, other[name])]
    assert differing == ["score.weight"]
    assert 0.01 < first["score.weight"].std() < 0.03  # the config's init_std is 0.02


def test_a_new_head_is_another_model():
    plain = ModelSpec("m", "embedded", "opt-embedded-s")
    headed = dataclasses.replace(plain, task=TASK)
    assert fingerprint(headed) == f"{fingerprint(plain)}:{TASK}"
    assert (task_here(plain), task_here(headed)) == ("causal_lm", TASK)


@pytest.mark.parametrize(
    ("wanted", "stream", "said"),
    [
        (ModelSpec("m", "embedded", "bert-embedded-s", task=TASK), False, "'bert' is none"),
        (ModelSpec("m", "embedded", "opt-embedded-s", task="qa"), False, "model.task=qa: give seq"),
        (ModelSpec("m", "embedded", "opt-embedded-s", task=TASK), True, "drop stream=true"),
        (ModelSpec("m", "synthetic", "opt-embedded-s", task=TASK), False, "drop model.source=syn"),
    ],
)
def test_what_has_no_place_for_a_new_head_is_refused(wanted, stream, said):
    with pytest.raises(LutlabError, match=said):
        load_model(wanted, torch.float32, "cpu", 0, stream=stream)
