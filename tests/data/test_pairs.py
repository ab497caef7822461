"""Pairs of GLUE: the hub's records and the files give the same rows; draws and damage."""

import dataclasses
import json

import pytest
import torch
from tests.base.refusals import refused
from tests.tiny_models import word_tokenizer

from lutlab.base.specs import Text, TextSpec
from lutlab.data import calibration_inputs, load_text, pydocs
from lutlab.data.choices import item_rows
from lutlab.data.embedded import WORDS
from lutlab.data.pairs import Pair, encoded, labelled_pairs, pairs

HUB_MNLI = {"premise": "w1 w2", "hypothesis": "w3", "label": 2, "idx": 0}
HUB_STSB = {"sentence1": 'w1 "w2', "sentence2": "w3", "label": 2.5, "idx": 0}
TSV = "index\tsentence1\tsentence2\tscore\n" + '0\tw1 "w2\tw3\t2.500\n1\tw4\tw5\t0.000\n'


def rows(dataset, *records):
    return tuple(item_rows(dataset, [json.dumps(record) for record in records], "here"))


def test_files_and_the_hub_give_the_same_pairs(tmp_path):
    glue = tmp_path / "glue"
    (glue / "STS-B").mkdir(parents=True)
    (glue / "STS-B/dev.tsv").write_text(TSV)
    record = json.dumps(HUB_MNLI | {"label": "contradiction"})
    (glue / "mnli_dev_matched.jsonl").write_text(record + "\n")
    stsb, mnli = (load_text(TextSpec(n, "folder", str(tmp_path))) for n in ("stsb", "mnli"))
    assert stsb.rows[:1] == rows("stsb", HUB_STSB)
    assert pairs(stsb) == (Pair('w1 "w2', "w3", 2.5), Pair("w4", "w5", 0.0))
    assert mnli.rows == rows("mnli", HUB_MNLI)
    assert pairs(mnli) == (Pair("w1 w2", "w3", 2),)


@pytest.mark.parametrize(("dataset", "record", "reason"), [
    ("mnli", HUB_MNLI | {"label": -1}, "label -1"),
    ("mnli", HUB_MNLI | {"label": "perhaps"}, "perhaps"),
    ("stsb", HUB_STSB | {"label": -1.0}, "similarity -1.0"),
    ("stsb", {"sentence1": "w1"}, "KeyError"),
    ("mnli", HUB_MNLI | {"premise": None}, "no text"),
    ("mnli", HUB_MNLI | {"label": 1.0}, "label 1.0"),
    ("stsb", HUB_STSB | {"label": 10**400}, "OverflowError"),
])  # fmt: skip
def test_a_record_without_a_label_is_named(dataset, record, reason):
    good = HUB_MNLI if dataset == "mnli" else HUB_STSB
    refused(f"line 2 of here is no item of {dataset} .*{reason}", rows, dataset, good, record)


def windows(text, samples, seqlen=64, seed=0):
    task, tokenizer = "sequence_classification", word_tokenizer()
    return calibration_inputs(task, text, tokenizer, samples, seqlen, seed)


def text_of(name, count, classes):
    labelled = (Pair(f"w{i}", "w0", i % classes) for i in range(count))
    return Text(name, tuple(pair.row() for pair in labelled), "", "here")


def test_pairs_are_padded_and_cut_and_drawn_without_repetition():
    both = [Pair("w1", "w2 w3", 0), Pair(" ".join(["w4"] * 9), "w5", 1)]
    inputs = encoded(word_tokenizer(), both, window=6)
    assert inputs["input_ids"].shape == (2, 6)
    assert inputs["attention_mask"].sum(1).tolist() == [3, 6]
    assert inputs["input_ids"][1].tolist() == [6] * 5 + [7], "the longer sentence is cut"
    text = text_of("stsb-train", 50, 1)
    assert len(set(windows(text, 20)["input_ids"][:, 0].tolist())) == 20
    refused("samples=51.*has 50 pairs.*give 1 to 50", windows, text, 51)


def test_trained_labels_belong_to_the_calibration_pairs_and_are_in_range():
    text = text_of("mnli-train", 20, 3)
    inputs, labels = labelled_pairs(text, word_tokenizer(), 12, 64, seed=3)
    assert torch.equal(inputs["input_ids"], windows(text, 12, seed=3)["input_ids"])
    ids = {word_tokenizer()(f"w{i}").input_ids[0]: i % 3 for i in range(20)}
    assert labels.tolist() == [ids[first] for first in inputs["input_ids"][:, 0].tolist()]
    hidden = dataclasses.replace(text, rows=(Pair("w1", "w2", -1).row(),))
    refused("1 of 1 .*range, first -1 of 'w1'", labelled_pairs, hidden, word_tokenizer(), 1, 64, 0)
    similar = dataclasses.replace(text, protocol="stsb-train")
    refused("similarities", labelled_pairs, similar, word_tokenizer(), 1, 64, 0)


def test_missing_words_are_held_out_balanced_and_true():
    texts = (load_text(TextSpec(n, "embedded")) for n in ("missing-word", "missing-word-train"))
    heldout, trained = (text.rows for text in texts)
    assert len(heldout) > 900
    assert len(trained) > 2000
    assert set(heldout).isdisjoint(trained)
    prose = " ".join(" ".join(pydocs.documents("docstrings", "heldout")).split())
    items = [Pair(**json.loads(row)) for row in heldout]
    counts = [sum(pair.label == label for pair in items) for label in range(3)]
    assert counts == [len(items) // 3] * 3
    true = [f"{pair.first} {WORDS[pair.label]} {pair.second}" in prose for pair in items]
    assert sum(true) > len(items) / 3, "the rest is of the passages' bucket"


@pytest.mark.parametrize("name", ["c4-train", "stsb"])
def test_a_classifier_is_not_calibrated_on_a_text_nor_on_what_is_evaluated(name):
    refused("take one of: mnli-train, mnli-tr", windows, Text(name, ("{}",), "", "here"), 1, 8)
