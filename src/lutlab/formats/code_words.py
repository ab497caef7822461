"""Integers of q bits in a dense stream, cut into words of 32: what GPTQ, QIGen and our uniform format have in common.

Value i of a row takes bits i*q .. i*q + q-1 of that row's stream, lowest bit first. q = 3:

    word 0    bit  31 30 | 29 28 27 | ... |  5  4  3 |  2  1  0        word 1    bit ...  3  2  1 |  0
         value       10  |     9    |     |     1    |     0                value           11   | 10 (its high bit)

values [rows, columns] in 0 .. 2^q-1 -> words [rows, ceil(columns * q / 32)] int32; the last word is filled with zeros.
"""

from __future__ import annotations

from lutlab.base.groups import check_bits
from lutlab.base.lazy import torch

WORD = 32
# Values handled at a time: temporaries stay in a core's cache, and are too small for torch to share out among threads.
CHUNK_VALUES = 2**17


def pack_words(values: torch.Tensor, q: int) -> torch.Tensor:
    """Integers [rows, columns] in 0 .. 2^q-1 -> words [rows, ceil(columns * q / 32)] int32."""
    rows, columns = values.shape
    words = torch.empty(rows, -(-columns * q // WORD), dtype=torch.int32, device=values.device)
    step = max(1, CHUNK_VALUES // columns)
    for first in range(0, rows, step):
        some = values[first : first + step].to(torch.uint8)
        eight = in_order(torch.nn.functional.pad(some, (0, -columns % WORD))).view(torch.int64)
        if check_bits(q) < 8:
            for count in (1, 2, 4):  # values in a field
                low, high = _halves(q, count)
                eight = (eight & low) | (eight >> (8 - q) * count & high)
        octets = in_order(eight.unsqueeze(2).view(torch.uint8)[..., :q]).view(len(some), -1)
        words[first : first + step] = octets.view(torch.int32)[:, : words.shape[1]]
    return words


def unpack_words(words: torch.Tensor, q: int, columns: int) -> torch.Tensor:
    """The inverse of pack_words: [rows, columns] uint8."""
    rows = len(words)
    values = torch.empty(rows, columns, dtype=torch.uint8, device=words.device)
    missing = -(-columns // WORD) * check_bits(q) - words.shape[1]
    step = max(1, CHUNK_VALUES // columns)
    for first in range(0, rows, step):
        some = in_order(torch.nn.functional.pad(words[first : first + step], (0, missing)))
        octets = some.view(torch.uint8).view(len(some), -1, q)
        eight = torch.nn.functional.pad(octets, (0, 8 - q)).view(torch.int64).squeeze(2)
        if q < 8:
            for count in (4, 2, 1):
                low, high = _halves(q, count)
                eight = (eight & low) | (eight & high) << (8 - q) * count
        values[first : first + step] = eight.view(torch.uint8)[:, :columns]
    return values


def pack_stream(values: torch.Tensor, q: int) -> torch.Tensor:
    """All values of a tensor in one stream: [ceil(count * q / 32)] int32."""
    flat = torch.nn.functional.pad(values.flatten(), (0, -values.numel() % WORD))
    return pack_words(flat.view(-1, WORD), q).view(-1)[: -(-values.numel() * q // WORD)].clone()


def unpack_stream(words: torch.Tensor, q: int, count: int) -> torch.Tensor:
    """The inverse of pack_stream: [count] int16."""
    whole = torch.nn.functional.pad(words, (0, -len(words) % q)).view(-1, q)
    return unpack_words(whole, q, WORD).view(-1)[:count].to(torch.int16)


def in_order(values: torch.Tensor) -> torch.Tensor:
    """A clone whose bytes can be viewed: contiguous() keeps odd strides where a dimension is 1."""
    return values.clone(memory_format=torch.contiguous_format)


def _halves(q: int, count: int) -> tuple[int, int]:
    """Masks of an int64 in fields of 16 * count bits: their lowest q * count bits, and the next as many."""
    low = sum(((1 << q * count) - 1) << at for at in range(0, 64, 16 * count))
    return low, low << q * count


def unpack_some(words: torch.Tensor, bits: int, places: torch.Tensor) -> torch.Tensor:
    """Numbers at some places of a stream, int16.

    Args:
        words: [W] int32, as pack_stream makes them.
        bits: bits of a number.
        places: int64 of any shape, indices of numbers in the stream.
    """
    first, shift = places * bits // WORD, places * bits % WORD
    low = words[first].long() & 0xFFFFFFFF
    high = words[(first + 1).clamp(max=len(words) - 1)].long() << WORD  # of a number over two words
    return ((low | high) >> shift & 2**bits - 1).short()
