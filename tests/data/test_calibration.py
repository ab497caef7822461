"""Calibration windows are the GPTQ repository's: an independent reading of its draws, and what is too short says so."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny_models import word_tokenizer

from lutlab.base.errors import LutlabError
from lutlab.base.specs import Text, TextSpec
from lutlab.data import calibration_windows, load_text
from lutlab.data.protocols import PROTOCOLS

NAMES = [name for name, rule in PROTOCOLS.items() if rule.kind == "calibration"]
JOINED = [name for name in NAMES if PROTOCOLS[name].join is not None]
CROPPED = [name for name in NAMES if PROTOCOLS[name].crops]
ROWS = tuple(" ".join(f"w{(i * j) % 90}" for j in range(i)) for i in range(2, 30))


def text(protocol, rows=ROWS):
    return Text(protocol, rows, "", "here")


def test_every_calibration_text_is_drawn_from_in_one_of_the_two_ways():
    assert sorted(JOINED + CROPPED) == sorted(NAMES)
    assert {"c4-train", "wikitext2-train", "ptb-train", "pydocs-train"} <= set(NAMES)


@pytest.mark.parametrize("name", JOINED)
@given(
    samples=st.integers(1, 9), seqlen=st.integers(1, 400), seed=st.integers(0, 5), bos=st.booleans()
)
@settings(max_examples=15)
def test_joined_rows_are_cut_where_gptq_cuts_them(name, samples, seqlen, seed, bos):
    tokenizer = word_tokenizer(bos)
    ids = tokenizer("\n\n".join(ROWS)).input_ids
    random.seed(seed)
    expected = []
    for _ in range(samples):
        i = random.randint(0, len(ids) - seqlen - 1)
        expected.append(ids[i : i + seqlen])
    found = calibration_windows(text(name), tokenizer, samples, seqlen, seed)
    assert found.dtype == torch.int64
    assert found.tolist() == expected


@pytest.mark.parametrize("name", CROPPED)
@given(
    samples=st.integers(1, 9), seqlen=st.integers(1, 25), seed=st.integers(0, 5), bos=st.booleans()
)
@settings(max_examples=15)
def test_documents_are_drawn_and_cropped_as_gptq_does(name, samples, seqlen, seed, bos):
    tokenizer = word_tokenizer(bos)
    random.seed(seed)
    expected = []
    for _ in range(samples):
        while True:
            i = random.randint(0, len(ROWS) - 1)
            document = tokenizer(ROWS[i]).input_ids
            if len(document) > seqlen:
                break
        i = random.randint(0, len(document) - seqlen - 1)
        expected.append(document[i : i + seqlen])
    assert calibration_windows(text(name), tokenizer, samples, seqlen, seed).tolist() == expected


def test_seeds_differ_and_the_random_module_is_left_alone():
    state = random.getstate()
    one, same, other = (
        calibration_windows(text("c4-train"), word_tokenizer(), 8, 5, seed) for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert random.getstate() == state


def test_a_text_too_short_says_what_there_is_and_what_is_needed():
    with pytest.raises(LutlabError, match=r"has 3 tokens.*at least 4 \(here\).*seqlen=2 or less"):
        calibration_windows(text("ptb-train", ("w1 w2 w3",)), word_tokenizer(), 1, 3, 0)
    with pytest.raises(LutlabError, match="longest has 29"):
        calibration_windows(text("c4-train"), word_tokenizer(), 1, 29, 0)
    with pytest.raises(LutlabError, match="at least 1 sample of at least 1 token, not 0 of 5"):
        calibration_windows(text("c4-train"), word_tokenizer(), 0, 5, 0)


@pytest.mark.parametrize("name", ["wikitext2", "c4", "lambada", "piqa"])
def test_what_is_evaluated_is_not_calibrated_on(name):
    with pytest.raises(LutlabError, match=r"not calibrated on; take one of: c4-train"):
        calibration_windows(text(name), word_tokenizer(), 1, 2, 0)


def test_the_embedded_text_is_long_enough_for_gptqs_samples():
    training = load_text(TextSpec("pydocs-train", "embedded"))
    assert training.origin.startswith("embedded: Python 3.")
    assert sum(map(len, training.rows)) > 128 * 2048
