"""Encoders: pairs of sentences score as each alone; masked tokens' numbers are transformers' and a naive reading's."""

import copy
import dataclasses
import math

import pytest
import torch
from tests.base.refusals import refused
from tests.data.test_masking import WORDS, mask_tokenizer
from tests.evaluators import items
from tests.models.architectures import config, make, randomized, uniform

from lutlab.base.specs import ModelRun, ModelSpec, Text
from lutlab.compress.driver import quantize_model
from lutlab.data.masking import masked_stream
from lutlab.data.pairs import MNLI_LABELS, Pair
from lutlab.evaluators import glue, masked_lm
from lutlab.evaluators.glue import Glue, GlueCorrelation
from lutlab.evaluators.masked_lm import MaskedLM
from lutlab.evaluators.perplexity import Perplexity
from lutlab.models.families import model_class
from lutlab.quantizers.rtn import RTN

SENTENCES = [" ".join(f"w{(i * j) % 90}" for j in range(1 + 3 * i % 11)) for i in range(1, 14)]
PAIRS = [Pair(SENTENCES[i], SENTENCES[-i], i % 3) for i in range(len(SENTENCES))]
RUN = ModelRun(ModelSpec("tiny", "folder", "nowhere"), "rtn", 3, 16)
TEXT = Text("topics", WORDS, "rows", "here")


@pytest.fixture(autouse=True)
def full(monkeypatch):
    """Batches of four pairs; the full-precision model, which masked_lm is given in the place of the row's files."""
    model = make("bert")
    monkeypatch.setattr(glue, "BATCH_PAIRS", 4)
    monkeypatch.setattr(masked_lm, "_full_precision", lambda run: model)
    return model


def subject(model, text=TEXT, seqlen=32):
    return items.subject(model, mask_tokenizer(), text, seqlen, run=RUN)


def paired(model, protocol="mnli", pairs=PAIRS):
    text = Text(protocol, tuple(pair.row() for pair in pairs), "rows", "here")
    return subject(model, text, 64)


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
    assert torch.allclose(glue.scores(model, mask_tokenizer(), PAIRS), alone(model), atol=1e-5)
    order = [name.lower() for name in names or given.split(",")]
    guessed = [order[index] for index in alone(model).argmax(-1).tolist()]
    right = [name == MNLI_LABELS[pair.label] for name, pair in zip(guessed, PAIRS, strict=True)]
    measured = Glue(labels=given).measure(paired(model))
    assert set(measured.values) == {metric.name for metric in Glue.metrics}
    assert measured.values["accuracy"] == sum(right) / len(right)
    assert [margin > 0 for margin in measured.samples] == right
    assert measured.n == len(PAIRS)


def test_correlations_of_what_the_model_says_itself():
    model = classifier(1)
    own = alone(model)[:, 0]
    squared = ((own - own.min()) / (own.max() - own.min())) ** 2
    labelled = zip(PAIRS, squared.tolist(), strict=True)
    pairs = [dataclasses.replace(pair, label=5 * score) for pair, score in labelled]
    values = GlueCorrelation().measure(paired(model, "stsb", pairs)).values
    pearson = torch.corrcoef(torch.stack([own, squared]))[0, 1].item()
    assert pearson < 0.999
    assert values.pop("spearman") == pytest.approx(1)
    assert values == pytest.approx({"pearson": pearson}, rel=1e-4)
    assert {metric.name for metric in GlueCorrelation.metrics} == {"spearman", "pearson"}


@torch.no_grad()
def test_values_are_those_of_a_naive_reading(full):
    model = copy.deepcopy(full)
    quantize_model(model, RTN(), uniform(model, 3, 16))
    measured = MaskedLM(seed=3).measure(subject(model))
    windows = masked_stream(TEXT, mask_tokenizer(), 32, seed=3)
    labels = windows.ids.masked_fill(~windows.chosen, -100)
    loss = model(input_ids=windows.read, labels=labels).loss.item()
    p, q = (
        m(input_ids=windows.read).logits[windows.chosen].double().softmax(-1) for m in (full, model)
    )
    names = mask_tokenizer().convert_ids_to_tokens(windows.ids[windows.chosen].tolist())
    agreeing = int((p.argmax(-1) == q.argmax(-1)).sum()) / len(names)
    size = sum(len(name) + 1 for name in names)  # and the blanks before them
    assert (measured.n, measured.values) == (len(names), {
        "masked_loss": pytest.approx(loss, rel=1e-5),
        "masked_perplexity": pytest.approx(math.exp(loss), rel=1e-4),
        "masked_kl": pytest.approx((p * (p / q).log()).sum(-1).mean().item(), rel=1e-4),
        "masked_agreement": agreeing,
        "masked_bits_per_byte": pytest.approx(loss * len(names) / math.log(2) / size, rel=0.02),  # two blanks a row
    })  # fmt: skip
    metrics = {metric.name for metric in MaskedLM.metrics}
    assert measured.values.keys() == measured.errors.keys() == metrics
    assert 0 < agreeing < 1
    itself = MaskedLM().measure(subject(copy.deepcopy(full))).values
    assert (itself["masked_agreement"], itself["masked_kl"]) == (1, 0)


def test_what_is_refused(full):
    refused(r"in the order of the model's head", Glue, labels="entailment,neutral")
    alike = [dataclasses.replace(pair, label=2.0) for pair in PAIRS]
    nan, encoder = copy.deepcopy(full), make("bert")
    with torch.no_grad():
        nan.cls.predictions.bias[3] = torch.nan
    for own, message, given in (
        (Glue(), r"needs a head of entailment, neutral, contradiction.* 2", paired(classifier(2))),
        (Glue(), r"'stsb' has no labels", paired(classifier(3), "stsb")),
        (Glue(), r"glue measures models for sequence_classification", paired(encoder)),
        (GlueCorrelation(), r"a head of one number, this model has 3 labels", paired(classifier(3), "stsb")),
        (GlueCorrelation(), r"same similarity for every pair", paired(classifier(1), "stsb", PAIRS[:1])),
        (GlueCorrelation(), r"all \d+ pairs have the similarity 2.0", paired(classifier(1), "stsb", alike)),
        (MaskedLM(), r"masked_lm measures models for masked_lm.*causal_lm", subject(make("opt"))),
        (MaskedLM(), r"loss of window 0 is nan", subject(nan)),
        (Perplexity(), r"ppl measures models for causal_lm.*evaluate masked_lm", subject(encoder)),
    ):  # fmt: skip
        refused(message, own.measure, given)
