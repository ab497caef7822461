"""UTF-8 bytes and words of the text that each token of a stream spells, so that tokenizers can be compared.

    tokens   </s> |The| quick| fo|xes|,          text: "The quick foxes,"
    bytes       0    3      6   3   3 1
    words       0    1      1   0   0 1          a word is what stands between white space

A token spells what lies between the end of the token before it and its own end: white space is the later token's, and
so are characters that the tokenizer drops. A character of several tokens is the first one's. A word is counted at the
token with its last character. BOS spells nothing. So every byte and every word is counted once.
"""

from __future__ import annotations

import re

from lutlab.base.lazy import PreTrainedTokenizerBase, np, torch
from lutlab.base.specs import Text
from lutlab.data.protocols import protocol
from lutlab.data.tokens import crop_places, once


def stream_extents(text: Text, tokenizer: PreTrainedTokenizerBase, seqlen: int) -> torch.Tensor:
    """Bytes and words, [2, T] int64, of the tokens of `token_stream(text, tokenizer, seqlen)`, with its errors."""
    rule = protocol(text.protocol)
    if rule.crops:
        assert rule.windows is not None  # of a stream, which ends
        places = crop_places(text, tokenizer, seqlen, rule.windows, seed=0)
        extents = torch.cat(
            [
                _extents(tokenizer, text.rows[document])[:, start : start + seqlen]
                for document, start, _ in places
            ],
            dim=1,
        )
    else:
        extents = once(_extents, tokenizer, rule.joined(text.rows))
        extents = extents[:, : rule.windows * seqlen] if rule.windows else extents
    return extents[:, : text.limit * seqlen] if text.limit else extents


def _extents(tokenizer: PreTrainedTokenizerBase, text: str) -> torch.Tensor:
    """Bytes and words [2, T] of the tokens of one text."""
    spans = tokenizer(text, return_offsets_mapping=True, verbose=False).offset_mapping
    # special tokens have the span (0, 0), so the largest end so far is where the text is read to
    ends = np.maximum.accumulate(np.array([end for _, end in spans], dtype=np.int64))
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    sizes = 1 + (points >= 0x80) + (points >= 0x800).astype(np.int64) + (points >= 0x10000)
    last = np.zeros(len(text), dtype=np.int64)
    last[[word.end() - 1 for word in re.finditer(r"\S+", text)]] = 1
    counts = np.stack([sizes, last]).cumsum(1)
    counts = np.concatenate([np.zeros((2, 1), dtype=np.int64), counts], 1)  # [2, characters + 1]
    return torch.from_numpy(np.diff(counts[:, ends], axis=1, prepend=0))
