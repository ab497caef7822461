"""Masked-language modelling: windows as BERT reads them, and its corruption of them (Devlin et al. 2019, section 3.1).

    [CLS] S - 2 tokens of a text [SEP]

Of the tokens between, 15 % are chosen, each by itself; of the chosen, 80 % become the mask token, 10 % a random token,
10 % stay. The model is to name the tokens that stood there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedTokenizerBase, torch
from lutlab.base.specs import Text
from lutlab.data.extents import stream_extents
from lutlab.data.tokens import calibration_windows, token_stream

CHOSEN = 0.15  # share of the tokens
MASKED, RANDOM = 0.8, 0.1  # shares of the chosen ones


@dataclass(frozen=True)
class Vocabulary:
    """Ids of a tokenizer: `size` of them, `special` ones are never chosen, `mask` stands for a token to be named."""

    size: int
    begin: int
    end: int
    mask: int
    special: Sequence[int]


@dataclass(frozen=True)
class MaskedWindows:
    """Windows [n, S] int64 as they stand in the text and as the model reads them; bool, where it is to name a token.

    `sizes` [n, S] int64: UTF-8 bytes of the text that each token spells (extents.py).
    """

    ids: torch.Tensor
    read: torch.Tensor
    chosen: torch.Tensor
    sizes: torch.Tensor


def vocabulary_of(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """The ids of a tokenizer for masked-language modelling.

    Raises:
        LutlabError: it has no mask token, or none that begins or ends a text.
    """
    named = {
        "begin": tokenizer.cls_token_id,
        "end": tokenizer.sep_token_id,
        "mask": tokenizer.mask_token_id,
    }
    if lacking := [name for name, index in named.items() if index is None]:
        raise LutlabError(
            f"the tokenizer {tokenizer.name_or_path or type(tokenizer).__name__} has no token for {', '.join(lacking)} "
            "(cls_token, sep_token, mask_token): masked-language modelling needs all three; take the model's own "
            "tokenizer"
        )
    return Vocabulary(len(tokenizer), **named, special=tuple(tokenizer.all_special_ids))


def corrupted(
    ids: torch.Tensor, vocabulary: Vocabulary, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids as the model reads them, and a bool mask, true where a token is to be named.

    Args:
        ids: [..., S] int64 on the CPU; not changed.
        vocabulary: special tokens and size of the tokenizer's vocabulary.
        seed: seed of the draw, which depends on nothing else but the shape of `ids`.
    """
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.rand(ids.shape, generator=draw) < CHOSEN
    chosen &= ~torch.isin(ids, torch.tensor(vocabulary.special))
    fate = torch.rand(ids.shape, generator=draw)
    read = ids.masked_fill(chosen & (fate < MASKED), vocabulary.mask)
    others = torch.randint(vocabulary.size, ids.shape, generator=draw)
    return torch.where(chosen & (fate >= 1 - RANDOM), others, read), chosen


def masked_stream(
    text: Text, tokenizer: PreTrainedTokenizerBase, seqlen: int, seed: int
) -> MaskedWindows:
    """Disjoint full windows of a text of kind `stream`, the remainder dropped; window i is corrupted with seed + i.

    Raises:
        LutlabError: a protocol of examples, a text shorter than one window, a window shorter than 3 tokens, or a
            tokenizer that has no mask token, or none that begins or ends a text.
    """
    vocabulary = vocabulary_of(tokenizer)
    inside = _inside(seqlen)
    whole = dataclasses.replace(text, limit=None)
    ids = token_stream(whole, tokenizer, seqlen)
    sizes, _ = stream_extents(whole, tokenizer, seqlen)
    first, last = int(ids[0] == vocabulary.begin), int(ids[-1] == vocabulary.end)
    inner = slice(first, len(ids) - last)  # each window has its own first and last
    length = (inner.stop - first) // inside * inside
    ids, sizes = (part[inner][:length].view(-1, inside)[: text.limit] for part in (ids, sizes))
    windows = _framed(ids, vocabulary.begin, vocabulary.end)
    drawn = [corrupted(window, vocabulary, seed + i) for i, window in enumerate(windows)]
    read, chosen = (torch.stack(part) for part in zip(*drawn, strict=True))
    return MaskedWindows(windows, read, chosen, _framed(sizes, 0, 0))


def masked_calibration(
    text: Text, tokenizer: PreTrainedTokenizerBase, samples: int, seqlen: int, seed: int
) -> torch.Tensor:
    """Windows [samples, seqlen] int64 of a text of kind `calibration`, corrupted as those that are evaluated."""
    vocabulary = vocabulary_of(tokenizer)
    windows = calibration_windows(text, tokenizer, samples, _inside(seqlen), seed)
    windows = _framed(windows, vocabulary.begin, vocabulary.end)
    return corrupted(windows, vocabulary, seed)[0]


def _inside(seqlen: int) -> int:
    """Number of a window's tokens that are the text's."""
    if seqlen < 3:
        raise LutlabError(
            f"a window of {seqlen} tokens holds nothing between its first and its last: take at least 3"
        )
    return seqlen - 2


def _framed(windows: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """[n, S - 2] -> [n, S]."""
    framed = torch.nn.functional.pad(windows, (1, 1), value=begin)
    framed[:, -1] = end
    return framed
