"""Tuning of classifiers: the loss is that of each pair alone; scales and head move, codes and all else do not."""

import pytest
import torch
from tests.models.architectures import BERT, OPT, randomized
from tests.tiny_models import word_tokenizer
from torch.nn import functional
from transformers import BertConfig, OPTConfig

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.data.pairs import Pair, encoded
from lutlab.models.families import linear_layers, model_class
from lutlab.modules import QuantLinear
from lutlab.tuning.losses import Labelled, loss

PAIRS = [
    Pair(" ".join(f"w{(i * j) % 9}" for j in range(1 + i % 5)), f"w{i % 3}", i % 3)
    for i in range(24)
]


def classifier(kind="OPT"):
    torch.manual_seed(0)
    config, sizes = {"OPT": (OPTConfig, OPT), "Bert": (BertConfig, BERT)}[kind]
    more = {"word_embed_proj_dim": 32} if kind == "OPT" else {}
    named = config(**sizes | {"pad_token_id": 1}, **more, num_labels=3)
    named.architectures = [f"{kind}ForSequenceClassification"]
    return randomized(model_class(named).from_config(named)).eval()


def samples(some=tuple(PAIRS)):
    return Labelled(encoded(word_tokenizer(), some, 64), torch.tensor([int(p.label) for p in some]))


def tuned(model, method, trains="scales", labels=None, steps=30, **options):
    given = samples()
    tuning = lutlab.Tuning(steps, 3e-3, loss="labels", trains=trains, weight_decay=0.05)
    labels = given.labels if labels is None else labels
    return lutlab.quantize(
        model, method, 2, 16, calibration=given.inputs, tuning=tuning, labels=labels, **options
    )


@torch.no_grad()
def loss_of(model):
    return loss(model, model, "labels", samples()).item()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["OPT", "Bert"])
def test_the_loss_is_the_mean_over_pairs_alone(kind):
    model = classifier(kind)
    alone = torch.cat([model(**samples([pair]).inputs).logits for pair in PAIRS])
    expected = functional.cross_entropy(alone.double(), samples().labels).item()
    assert loss_of(model) == pytest.approx(expected, abs=1e-5)
    short = samples()[torch.tensor([0, 5])]
    assert short.trimmed()["input_ids"].shape[1] < samples().inputs["input_ids"].shape[1]
    assert loss(model, model, "distribution", short).item() == pytest.approx(0, abs=1e-6)


def test_scales_and_the_head_move_and_nothing_else():
    plain = lutlab.quantize(classifier(), "bcq", 2, 16)
    model = tuned(classifier(), "bcq")
    before, after = plain.state_dict(), model.state_dict()
    moved = {
        name.rpartition(".")[2] for name in before if not torch.equal(before[name], after[name])
    }
    assert moved == {"alpha", "weight"}
    assert not torch.equal(before["score.weight"], after["score.weight"])
    assert all(torch.equal(before[n], after[n]) for n in before if "planes" in n or "norm" in n)
    assert loss_of(model) < loss_of(plain)


def test_full_fine_tuning_moves_every_parameter():
    before = dict(classifier().named_parameters())
    model = tuned(classifier(), "none", "weights")
    after = dict(model.named_parameters())
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert loss_of(model) < loss_of(classifier()) - 0.1
    assert not any(isinstance(module, QuantLinear) for _, module in linear_layers(model))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (torch.tensor([0, 3, *[1] * 22]), r"1 of 24 labels are out of range, first 3.*0 to 2"),
        (torch.tensor([-1] * 24), "first -1.*hidden labels"),
        (torch.zeros(23, dtype=torch.int64), r"\[23\] beside 24 texts"),
        (torch.zeros(24), "torch.float32"),
    ],
)
def test_labels_that_the_head_does_not_have_are_refused(labels, said):
    with pytest.raises(LutlabError, match=said):
        tuned(classifier(), "bcq", labels=labels)


def test_a_classifier_is_tuned_with_labels_and_full_fine_tuning_without_a_method():
    given, tuning = samples(), lutlab.Tuning(3, trains="scales")
    with pytest.raises(LutlabError, match="tuned on labelled texts"):
        lutlab.quantize(classifier(), "bcq", 2, 16, calibration=given.inputs, tuning=tuning)
    with pytest.raises(LutlabError, match=r"labels are what tuning.*lutlab\.Tuning"):
        lutlab.quantize(classifier(), "bcq", 2, 16, calibration=given.inputs, labels=given.labels)
