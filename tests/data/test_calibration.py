"""Calibration windows are the GPTQ repository's: an independent reading of its draws, and what is too short says so."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.base.refusals import refused
from tests.tiny_models import word_tokenizer

from lutlab.base.specs import Text, TextSpec
from lutlab.data import calibration_windows, load_text
from lutlab.data.protocols import PROTOCOLS

NAMES = [name for name, rule in PROTOCOLS.items() if rule.kind == "calibration"]
ROWS = tuple(" ".join(f"w{(i * j) % 90}" for j in range(i)) for i in range(2, 30))


def text(protocol, rows=ROWS, limit=None):
    return Text(protocol, rows, "", "here", limit)


def gptq_windows(tokenizer, samples, seqlen, seed, joined=None):
    """As its repository draws them: cut out of the joined rows, or out of a row that is longer."""
    random.seed(seed)
    windows = []
    for _ in range(samples):
        ids = [] if joined is None else tokenizer(joined.join(ROWS)).input_ids
        while len(ids) <= seqlen:
            ids = tokenizer(ROWS[random.randint(0, len(ROWS) - 1)]).input_ids
        i = random.randint(0, len(ids) - seqlen - 1)
        windows.append(ids[i : i + seqlen])
    return windows


def test_every_calibration_text_is_drawn_from_in_one_of_the_two_ways():
    assert all((PROTOCOLS[name].join is None) == PROTOCOLS[name].crops for name in NAMES)
    assert {"c4-train", "wikitext2-train", "ptb-train", "pydocs-train"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 9), st.integers(1, 400), st.integers(0, 5), st.booleans())
@settings(max_examples=15)
def test_windows_are_drawn_and_cut_where_gptq_draws_them(name, samples, seqlen, seed, bos):
    tokenizer, crops = word_tokenizer(bos), PROTOCOLS[name].crops
    seqlen = 1 + seqlen % 25 if crops else seqlen
    expected = gptq_windows(tokenizer, samples, seqlen, seed, None if crops else "\n\n")
    windows = calibration_windows(text(name), tokenizer, samples, seqlen, seed)
    assert windows.dtype == torch.int64
    assert windows.tolist() == expected
    fewer = calibration_windows(text(name), tokenizer, (samples + 1) // 2, seqlen, seed)
    assert torch.equal(fewer, windows[: len(fewer)]), "tuning.samples draws behind them"


def test_seeds_differ_and_the_random_module_is_left_alone():
    state = random.getstate()
    windows, same, other = (
        calibration_windows(text("c4-train"), word_tokenizer(), 8, 5, seed) for seed in (0, 0, 1)
    )
    assert torch.equal(windows, same)
    assert not torch.equal(windows, other)
    assert random.getstate() == state


@pytest.mark.parametrize(("name", "samples", "seqlen", "message"), [
    ("ptb-train", 1, 3, r"has 3 tokens.*at least 4 \(here\).*seqlen=2 or less"),
    ("c4-train", 1, 3, "longest has 3"),
    ("c4-train", 0, 5, "at least 1 sample of at least 1 token, not 0 of 5"),
    *((name, 1, 2, "not calibrated on; take one of: c4-train") for name in ("wikitext2", "c4", "lambada", "piqa")),
])  # fmt: skip
def test_what_cannot_be_drawn_says_why(name, samples, seqlen, message):
    few = text(name, ("w1 w2 w3",))
    refused(message, calibration_windows, few, word_tokenizer(), samples, seqlen, 0)


def test_the_embedded_text_is_long_enough_for_gptqs_samples():
    training = load_text(TextSpec("pydocs-train", "embedded"))
    assert training.origin.startswith("embedded: Python 3.")
    assert sum(map(len, training.rows)) > 128 * 2048
