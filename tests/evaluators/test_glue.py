"""Pairs of sentences: scores are the model's own for each pair alone, labels are found in any order of the head."""

import dataclasses

import pytest
import torch
from tests.data.test_masking import mask_tokenizer
from tests.models.architectures import config, make, randomized
from tests.tiny_models import RUN

from lutlab.base.errors import LutlabError
from lutlab.base.specs import Subject, Text
from lutlab.data.pairs import MNLI_LABELS, Pair
from lutlab.evaluators import glue
from lutlab.evaluators.glue import Glue, GlueCorrelation, scores
from lutlab.models.families import model_class

SENTENCES = [" ".join(f"w{(i * j) % 90}" for j in range(1 + 3 * i % 11)) for i in range(1, 14)]
PAIRS = [Pair(SENTENCES[i], SENTENCES[-i], i % 3) for i in range(len(SENTENCES))]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(glue, "BATCH_PAIRS", 4)


def subject(model, protocol, pairs):
    text = Text(protocol, tuple(pair.row() for pair in pairs), "rows", "here")
    return Subject(model, mask_tokenizer(), (), text, 64, RUN)


def classifier(labels, names=None):
    torch.manual_seed(0)
    chosen = config("bert-classifier")
    chosen.num_labels = labels
    if names:
        chosen.id2label = dict(enumerate(names))
    return randomized(model_class(chosen).from_config(chosen))


@torch.no_grad()
def alone(model):
    """Logits of each pair by itself, without padding."""
    tokenizer = mask_tokenizer()
    rows = [tokenizer(pair.first, pair.second, return_tensors="pt") for pair in PAIRS]
    return torch.cat([model(**row).logits for row in rows])


def test_scores_are_in_the_order_of_the_pairs():
    model = make("bert-classifier")
    assert torch.allclose(scores(model, mask_tokenizer(), PAIRS), alone(model), atol=1e-5)


@pytest.mark.parametrize(
    ("names", "given"),
    [
        (None, ",".join(MNLI_LABELS)),
        (None, "contradiction,entailment,neutral"),
        (("CONTRADICTION", "ENTAILMENT", "NEUTRAL"), ",".join(MNLI_LABELS)),
    ],
)
def test_accuracy_counts_labels_in_the_order_of_the_head(names, given):
    model = classifier(3, names)
    order = [name.lower() for name in names] if names else given.split(",")
    guessed = [order[index] for index in alone(model).argmax(-1).tolist()]
    right = [name == MNLI_LABELS[pair.label] for name, pair in zip(guessed, PAIRS, strict=True)]
    found = Glue(labels=given).measure(subject(model, "mnli", PAIRS))
    assert set(found.values) == {metric.name for metric in Glue.metrics}
    assert found.values["accuracy"] == sum(right) / len(right)
    assert [margin > 0 for margin in found.samples] == right
    assert found.n == len(PAIRS)


def test_correlations_of_what_the_model_says_itself():
    model = classifier(1)
    said = alone(model)[:, 0]
    scaled = (said - said.min()) / (said.max() - said.min())
    squared = [
        Pair(p.first, p.second, 5 * s) for p, s in zip(PAIRS, (scaled**2).tolist(), strict=True)
    ]
    found = GlueCorrelation().measure(subject(model, "stsb", squared))
    assert set(found.values) == {metric.name for metric in GlueCorrelation.metrics}
    assert found.values["spearman"] == pytest.approx(1)
    expected = torch.corrcoef(torch.stack([said, scaled**2]))[0, 1].item()
    assert found.values["pearson"] == pytest.approx(expected, rel=1e-4)
    assert found.values["pearson"] < 0.999


def test_what_is_refused():
    with pytest.raises(LutlabError, match=r"in the order of the model's head"):
        Glue(labels="entailment,neutral")
    with pytest.raises(
        LutlabError, match=r"needs a head of entailment, neutral, contradiction.* 2"
    ):
        Glue().measure(subject(classifier(2), "mnli", PAIRS))
    with pytest.raises(LutlabError, match=r"needs a head of one number, this model has 3 labels"):
        GlueCorrelation().measure(subject(classifier(3), "stsb", PAIRS))
    with pytest.raises(LutlabError, match=r"'stsb' has no labels"):
        Glue().measure(subject(classifier(3), "stsb", PAIRS))
    with pytest.raises(LutlabError, match=r"glue measures models for sequence_classification"):
        Glue().measure(subject(make("bert"), "mnli", PAIRS))
    with pytest.raises(LutlabError, match=r"same similarity for every pair"):
        GlueCorrelation().measure(subject(classifier(1), "stsb", PAIRS[:1]))
    alike = [dataclasses.replace(pair, label=2.0) for pair in PAIRS]
    with pytest.raises(LutlabError, match=r"all \d+ pairs have the similarity 2.0"):
        GlueCorrelation().measure(subject(classifier(1), "stsb", alike))
