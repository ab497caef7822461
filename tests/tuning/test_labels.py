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

TEXTS = [" ".join(f"w{(i * j) % 9}" for j in range(1 + i % 5)) for i in range(24)]
PAIRS = [Pair(text, f"w{i % 3}", i % 3) for i, text in enumerate(TEXTS)]


def classifier(kind="OPT"):
    torch.manual_seed(0)
    config, sizes = {"OPT": (OPTConfig, OPT), "Bert": (BertConfig, BERT)}[kind]
    more = {"word_embed_proj_dim": 32} if kind == "OPT" else {}
    named = config(**sizes | {"pad_token_id": 1}, **more, num_labels=3)
    named.architectures = [f"{kind}ForSequenceClassification"]
    return randomized(model_class(named).from_config(named)).eval()


def samples(some=tuple(PAIRS)):
    return Labelled(encoded(word_tokenizer(), some, 64), torch.tensor([int(p.label) for p in some]))


def tuned(model, method, trains="scales", **options):
    tuning = lutlab.Tuning(30, 3e-3, loss="labels", trains=trains, weight_decay=0.05)
    given = {"calibration": samples().inputs, "labels": samples().labels, "tuning": tuning}
    return lutlab.quantize(model, method, 2, 16, **given | options)


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


@pytest.mark.parametrize("rate", [3e-3, None])
def test_scales_and_the_head_move_and_nothing_else(rate):
    plain = lutlab.quantize(classifier(), "bcq", 2, 16)
    tuning = lutlab.Tuning(30, rate, loss="labels", trains="scales")
    model = tuned(classifier(), "bcq", tuning=tuning)
    before, after = plain.state_dict(), model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name.rpartition(".")[2] for name in moved} == {"alpha", "weight"}
    assert "score.weight" in moved
    assert not any("planes" in name or "norm" in name for name in moved)
    assert loss_of(model) < loss_of(plain)
    # Adam takes a rate a step at most, and a head's is absolute
    assert (after["score.weight"] - before["score.weight"]).abs().max() <= 30 * (rate or 1e-3)


def test_full_fine_tuning_moves_every_parameter():
    before = dict(classifier().named_parameters())
    model = tuned(classifier(), "none", "weights")
    after = dict(model.named_parameters())
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert loss_of(model) < loss_of(classifier()) - 0.1
    assert not any(isinstance(module, QuantLinear) for _, module in linear_layers(model))


@pytest.mark.parametrize(("options", "message"), [
    ({"labels": torch.tensor([0, 3, *[1] * 22])}, r"1 of 24 labels are out of range, first 3.*0 to 2"),
    ({"labels": torch.tensor([-1] * 24)}, "first -1.*hidden labels"),
    ({"labels": torch.zeros(23, dtype=torch.int64)}, r"\[23\] beside 24 texts"),
    ({"labels": torch.zeros(24)}, "torch.float32"),
    ({"labels": None, "tuning": lutlab.Tuning(3, trains="scales")}, "tuned on labelled texts"),
    ({"tuning": lutlab.Tuning(3, loss="labels", trains="scales", samples=4)}, "texts with padding"),
    ({"tuning": None}, r"labels are what tuning.*lutlab\.Tuning"),
])  # fmt: skip
def test_labels_that_do_not_fit_are_refused(options, message):
    with pytest.raises(LutlabError, match=message):
        tuned(classifier(), "bcq", **options)
