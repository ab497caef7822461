"""Rows to token ids: joins, windows, crops, BOS, hashes, on a tokenizer of words made here."""

import json
import random
from collections import OrderedDict

import pytest
import torch
from tests.tiny_models import word_tokenizer
from transformers import AutoTokenizer

from lutlab.base.errors import LutlabError
from lutlab.base.specs import Text, TextSpec
from lutlab.data import (
    calibration_windows,
    examples,
    load_text,
    token_sha256,
    token_stream,
    tokenizer_sha256,
)
from lutlab.data.protocols import PROTOCOLS

ROWS = tuple(f"w{i} w{i + 1} w{i + 2}" for i in range(0, 40, 3))


def text(protocol, rows=ROWS, limit=None):
    return Text(protocol, rows, "", "here", limit)


def ids_of(string):
    return [int(word[1:]) + 2 for word in string.split()]


@pytest.mark.parametrize(
    "name", [n for n, p in PROTOCOLS.items() if p.kind == "stream" and not p.crops]
)
def test_a_stream_is_one_tokenisation_with_bos_once_in_front(name):
    tokenizer = word_tokenizer(bos=True)
    ids = token_stream(text(name), tokenizer, 4).tolist()
    assert ids == [0, *ids_of(" ".join(ROWS))]


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
    first = token_stream(text("ptb"), word_tokenizer(bos=True), 4)
    expected = first.clone()
    first.zero_()  # a caller's own
    second = token_stream(text("ptb", limit=3), word_tokenizer(bos=True), 4)
    assert torch.equal(second, expected[:12])
    windows = calibration_windows(text("ptb-train"), word_tokenizer(bos=True), 2, 5, seed=0)
    windows.zero_()
    assert torch.equal(token_stream(text("ptb"), word_tokenizer(bos=True), 4), expected)
    assert len(tokenised) == 1


def test_another_text_or_tokenizer_is_tokenised_anew(tokenised):
    rows = ("<s> w1 w2 w3",)
    plain = token_stream(text("ptb", rows), word_tokenizer(), 4).tolist()
    begun = token_stream(text("ptb", rows), word_tokenizer(bos=True), 4).tolist()
    splitting = word_tokenizer()
    splitting.split_special_tokens = True
    split = token_stream(text("ptb", rows), splitting, 4).tolist()
    other = token_stream(text("ptb", ("w3 w2 w1 w0",)), word_tokenizer(), 4).tolist()
    assert (plain, begun, other) == ([0, 3, 4, 5], [0, 0, 3, 4, 5], [5, 4, 3, 2])
    assert split == splitting(rows[0]).input_ids
    assert len(tokenised) == 4


def test_the_oldest_of_many_texts_is_forgotten(tokenised):
    for number in (*range(17), 16, 0):
        token_stream(text("ptb", (f"w{number}",)), word_tokenizer(), 1)
    assert tokenised == [f"w{number}" for number in (*range(17), 0)]


def test_the_separator_is_the_protocols():
    joined = {}
    for name in ("ptb", "ptb-new"):
        tokenizer = word_tokenizer()
        tokenizer.backend_tokenizer.pre_tokenizer = (
            None  # the whole text is one word: unknown, if any row is added
        )
        rows = ("w1", "w2")
        tokenizer.add_tokens(["w1\n\nw2", "w1 w2"])
        joined[name] = tokenizer.convert_ids_to_tokens(
            token_stream(text(name, rows), tokenizer, 1).tolist()
        )
    assert joined == {"ptb": ["w1\n\nw2"], "ptb-new": ["w1 w2"]}


def test_c4_new_stops_after_256_windows():
    rows = ("w1 w2 w3",) * 400
    assert len(token_stream(text("c4-new", rows), word_tokenizer(bos=True), 4)) == 256 * 4


def test_c4_draws_what_gptq_draws():
    tokenizer, seqlen = word_tokenizer(bos=True), 5
    rows = tuple(" ".join(f"w{(i * j) % 90}" for j in range(i)) for i in range(2, 30))
    random.seed(0)
    expected = []
    for _ in range(256):
        while True:
            i = random.randint(0, len(rows) - 1)
            encoded = tokenizer(rows[i]).input_ids
            if len(encoded) > seqlen:
                break
        i = random.randint(0, len(encoded) - seqlen - 1)
        expected += encoded[i : i + seqlen]
    state = random.getstate()
    assert token_stream(text("c4", rows), tokenizer, seqlen).tolist() == expected
    assert random.getstate() == state


def test_c4_without_a_long_document_says_so_instead_of_drawing_for_ever():
    with pytest.raises(LutlabError, match=r"longest has 4"):
        token_stream(text("c4"), word_tokenizer(bos=True), 4)


def test_a_text_shorter_than_a_window_names_the_longest_possible():
    with pytest.raises(LutlabError, match="has 42 tokens, fewer than one window of 64"):
        token_stream(text("ptb"), word_tokenizer(), 64)


def test_a_limit_keeps_the_first_windows_or_examples():
    whole = token_stream(text("wikitext2"), word_tokenizer(bos=True), 4)
    part = token_stream(text("wikitext2", limit=2), word_tokenizer(bos=True), 4)
    assert part.tolist() == whole[:8].tolist()
    assert len(token_stream(text("wikitext2", limit=999), word_tokenizer(bos=True), 4)) == len(
        whole
    )
    assert examples(text("lambada", limit=3)) == ROWS[:3]


@pytest.mark.parametrize("limit", [0, -1, True, 2.0, "3", 10**30])
def test_a_limit_that_is_no_number_from_one_is_refused(limit):
    with pytest.raises(LutlabError, match=r"data\.limit=.*: give a whole number of at least 1"):
        load_text(TextSpec("topics", "embedded", limit=limit))


def test_promised_but_missing_bos_is_refused(tmp_path):
    word_tokenizer().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert len(token_stream(text("ptb"), AutoTokenizer.from_pretrained(tmp_path), 4)) == 42
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": True}))
    with pytest.raises(LutlabError, match="begins it with nothing"):
        token_stream(text("ptb"), AutoTokenizer.from_pretrained(tmp_path), 4)


def test_something_else_in_front_of_the_text_is_refused():
    tokenizer = word_tokenizer(bos=True)
    tokenizer.bos_token = "w5"
    with pytest.raises(LutlabError, match=r"begins it with \[0\]"):
        token_stream(text("ptb"), tokenizer, 4)


def test_kinds_do_not_mix():
    with pytest.raises(LutlabError, match="lambada-joined"):
        token_stream(text("lambada"), word_tokenizer(), 4)
    with pytest.raises(LutlabError, match="passages"):
        examples(text("wikitext2"))
    with pytest.raises(LutlabError, match="'c4-train' is a text for calibration, never evaluated"):
        token_stream(text("c4-train"), word_tokenizer(), 4)
    with pytest.raises(LutlabError, match="'piqa' is a list of items"):
        examples(text("piqa"))
    assert examples(text("lambada")) == ROWS


def test_a_long_text_makes_no_noise(caplog):
    tokenizer = word_tokenizer()
    tokenizer.model_max_length = 3
    token_stream(text("ptb"), tokenizer, 4)
    assert not caplog.records


def test_hashes_see_every_change():
    tokenizer = word_tokenizer()
    ids = token_stream(text("ptb"), tokenizer, 4)
    before = tokenizer_sha256(tokenizer)
    assert token_sha256(ids) == token_sha256(ids.int())
    assert token_sha256(ids) != token_sha256(ids[:-1])
    tokenizer(["w1", "w1 w2"], padding=True)
    assert tokenizer_sha256(tokenizer) == before, "a call that pads is no other tokenizer"
    assert tokenizer_sha256(word_tokenizer(bos=True)) != before


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(LutlabError, match="did you mean 'wikitext2'"):
        load_text(TextSpec("wikitext", "hub"))
    with pytest.raises(LutlabError, match="did you mean 'folder'"):
        load_text(TextSpec("ptb", "folders"))


def test_a_source_without_the_text_says_which_has_it():
    with pytest.raises(LutlabError, match="topics"):
        load_text(TextSpec("wikitext2", "embedded"))
    with pytest.raises(LutlabError, match=r"data\.source=embedded"):
        load_text(TextSpec("topics", "hub"))
