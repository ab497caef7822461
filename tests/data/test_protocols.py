"""Rows to token ids: joins, windows, crops, BOS, hashes, on a tokenizer of words made here."""

import random
from collections import OrderedDict

import pytest
import torch
from tests.base.refusals import refused
from tests.data.test_calibration import ROWS as LONG_ROWS
from tests.data.test_calibration import gptq_windows
from tests.models.folders import change_config
from tests.tiny_models import word_tokenizer
from transformers import AutoTokenizer

from lutlab import data
from lutlab.base.specs import Text, TextSpec
from lutlab.data import examples, load_text, token_stream
from lutlab.data.protocols import PROTOCOLS

ROWS = tuple(f"w{i} w{i + 1} w{i + 2}" for i in range(0, 40, 3))


def text(protocol, rows=ROWS, limit=None):
    return Text(protocol, rows, "", "here", limit)


def stream(name, window=4, bos=True, **options):
    return token_stream(text(name, **options), word_tokenizer(bos), window)


@pytest.mark.parametrize(
    "name", [n for n, p in PROTOCOLS.items() if p.kind == "stream" and not p.crops]
)
def test_a_stream_is_one_tokenisation_with_bos_once_in_front(name):
    words = " ".join(ROWS).split()
    assert stream(name).tolist() == [0, *(int(word[1:]) + 2 for word in words)]


@pytest.fixture
def tokenised(monkeypatch):
    """The texts that are tokenised, in order; nothing is kept from other tests."""
    texts = []

    def encode(tokenizer, string):
        texts.append(string)
        return tokenizer(string).input_ids

    monkeypatch.setattr("lutlab.data.tokens._kept", OrderedDict())
    monkeypatch.setattr("lutlab.data.tokens.encode", encode)
    return texts


def test_a_text_is_tokenised_once_for_all_tokenizers_of_one_state(tokenised):
    first = stream("ptb")
    expected = first.clone()
    first.zero_()  # a caller's own
    assert torch.equal(stream("ptb", limit=3), expected[:12])
    windows = data.calibration_windows(text("ptb-train"), word_tokenizer(bos=True), 2, 5, seed=0)
    windows.zero_()
    assert torch.equal(stream("ptb"), expected)
    assert len(tokenised) == 1


def test_another_text_or_tokenizer_is_tokenised_anew(tokenised):
    rows, splitting = ("<s> w1 w2 w3",), word_tokenizer()
    splitting.split_special_tokens = True
    assert stream("ptb", bos=False, rows=rows).tolist() == [0, 3, 4, 5]
    assert stream("ptb", rows=rows).tolist() == [0, 0, 3, 4, 5]
    split = token_stream(text("ptb", rows), splitting, 4).tolist()
    assert split == splitting(rows[0]).input_ids
    assert stream("ptb", bos=False, rows=("w3 w2 w1 w0",)).tolist() == [5, 4, 3, 2]
    assert len(tokenised) == 4


def test_the_oldest_of_many_texts_is_forgotten(tokenised):
    for number in (*range(17), 16, 0):
        stream("ptb", 1, bos=False, rows=(f"w{number}",))
    assert tokenised == [f"w{number}" for number in (*range(17), 0)]


@pytest.mark.parametrize(("name", "joined"), [("ptb", "w1\n\nw2"), ("ptb-new", "w1 w2")])
def test_the_separator_is_the_protocols(name, joined):
    tokenizer = word_tokenizer()
    # the whole text is one word: unknown, if any row is added
    tokenizer.backend_tokenizer.pre_tokenizer = None
    tokenizer.add_tokens(["w1\n\nw2", "w1 w2"])
    ids = token_stream(text(name, ("w1", "w2")), tokenizer, 1).tolist()
    assert tokenizer.convert_ids_to_tokens(ids) == [joined]


def test_c4_draws_what_gptq_draws():
    expected = gptq_windows(word_tokenizer(bos=True), 256, 5, seed=0)
    state = random.getstate()
    assert stream("c4", 5, rows=LONG_ROWS).view(-1, 5).tolist() == expected
    assert random.getstate() == state


def test_a_limit_keeps_the_first_windows_or_examples():
    whole = stream("wikitext2")
    assert stream("wikitext2", limit=2).tolist() == whole[:8].tolist()
    assert len(stream("wikitext2", limit=999)) == len(whole)
    assert examples(text("lambada", limit=3)) == ROWS[:3]
    assert len(stream("c4-new", rows=("w1 w2 w3",) * 400)) == 256 * 4, "a limit of its own"


@pytest.mark.parametrize("limit", [0, -1, True, 2.0, "3", 10**30])
def test_a_limit_that_is_no_number_from_one_is_refused(limit):
    message = r"data\.limit=.*: give a whole number of at least 1"
    refused(message, load_text, TextSpec("topics", "embedded", limit=limit))


def test_promised_but_missing_bos_and_another_one_are_refused(tmp_path):
    word_tokenizer().save_pretrained(tmp_path)
    assert len(token_stream(text("ptb"), AutoTokenizer.from_pretrained(tmp_path), 4)) == 42
    change_config(tmp_path, "tokenizer_config.json", add_bos_token=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    refused("begins it with nothing", token_stream, text("ptb"), tokenizer, 4)
    tokenizer = word_tokenizer(bos=True)
    tokenizer.bos_token = "w5"
    refused(r"begins it with \[0\]", token_stream, text("ptb"), tokenizer, 4)


@pytest.mark.parametrize(("name", "window", "message"), [
    ("c4", 4, "longest has 4"),  # instead of drawing for ever
    ("ptb", 64, "has 43 tokens, fewer than one window of 64"),
    ("lambada", 4, "lambada-joined"),
    ("c4-train", 4, "'c4-train' is a text for calibration, never evaluated"),
])  # fmt: skip
def test_what_is_no_stream_says_why(name, window, message):
    refused(message, stream, name, window)


def test_kinds_do_not_mix():
    refused("passages", examples, text("wikitext2"))
    refused("'piqa' is a list of items", examples, text("piqa"))
    assert examples(text("lambada")) == ROWS


def test_a_long_text_makes_no_noise(caplog):
    tokenizer = word_tokenizer()
    tokenizer.model_max_length = 3
    token_stream(text("ptb"), tokenizer, 4)
    assert not caplog.records


def test_hashes_see_every_change():
    tokenizer, ids = word_tokenizer(), stream("ptb", bos=False)
    before = data.tokenizer_sha256(tokenizer)
    assert data.token_sha256(ids) == data.token_sha256(ids.int())
    assert data.token_sha256(ids) != data.token_sha256(ids[:-1])
    tokenizer(["w1", "w1 w2"], padding=True)
    assert data.tokenizer_sha256(tokenizer) == before, "a call that pads is no other tokenizer"
    assert data.tokenizer_sha256(word_tokenizer(bos=True)) != before


@pytest.mark.parametrize(("name", "source", "message"), [
    ("wikitext", "hub", "did you mean 'wikitext2'"), ("ptb", "folders", "did you mean 'folder'"),
    ("wikitext2", "embedded", "topics"), ("topics", "hub", r"data\.source=embedded"),  # which has it
])  # fmt: skip
def test_unknown_names_and_sources_without_the_text(name, source, message):
    refused(message, load_text, TextSpec(name, source))
