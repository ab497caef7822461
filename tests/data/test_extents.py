"""What a token spells: against the text itself, by tokenizers that split characters or drop white space, with BOS."""

import re

import pytest
import torch
from tests.tiny_models import byte_tokenizer, word_tokenizer

from lutlab.base.specs import Text
from lutlab.data.extents import stream_extents
from lutlab.data.tokens import token_stream

ROWS = ("w1  naïve w2,\n 日本語 –", " a🙂b  w3 w4 apples. ")
WHOLE = "\n\n".join(ROWS)


def counts(spelled):
    """UTF-8 bytes of a text, and words of it whose last character it has."""
    ends = {word.end() for word in re.finditer(r"\S+", WHOLE)}
    return [len(spelled.encode()), sum(end in ends for end in range(1, len(spelled) + 1))]


@pytest.mark.parametrize("make", [byte_tokenizer, word_tokenizer])
def test_each_byte_and_word_is_counted_once_where_it_ends(make):
    tokenizer, text = make(bos=True), Text("wikitext2", ROWS, "h", "here")
    extents = stream_extents(text, tokenizer, 4)
    ids = token_stream(text, tokenizer, 4)
    spans = tokenizer(WHOLE, return_offsets_mapping=True).offset_mapping
    assert extents.shape == (2, len(ids))
    assert extents[:, 0].tolist() == [0, 0], "BOS spells nothing"
    for i, (_, end) in enumerate(spans):
        assert extents[:, : i + 1].sum(1).tolist() == counts(WHOLE[:end])
    limited = stream_extents(Text("wikitext2", ROWS, "h", "here", limit=2), tokenizer, 4)
    assert torch.equal(limited, extents[:, :8])


def test_of_crops_those_of_their_own_document_count():
    rows = tuple(" ".join(f"w{i + j}" for j in range(40)) for i in range(0, 60, 7))
    tokenizer, text = word_tokenizer(bos=True), Text("c4", rows, "h", "here", limit=20)
    ids, extents = token_stream(text, tokenizer, 5), stream_extents(text, tokenizer, 5)
    words = tokenizer.convert_ids_to_tokens(ids.tolist())
    starts = {row.partition(" ")[0] for row in rows}
    expected = [0 if w == "<s>" else len(w) + 1 for w in words]
    for i in range(1, len(words)):
        expected[i] -= words[i - 1] == "<s>" and words[i] in starts  # no blank before a document
    assert extents[0].tolist() == expected
    assert extents[1].tolist() == [int(w != "<s>") for w in words]
