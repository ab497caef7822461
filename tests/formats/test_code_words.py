"""Words hold what their picture says, and give it back."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lutlab.formats.code_words import (
    pack_stream,
    pack_words,
    unpack_some,
    unpack_stream,
    unpack_words,
)


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 70), st.integers(0, 99))
def test_words_and_back(q, rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(2**q, (rows, columns), generator=generator, dtype=torch.uint8)
    words = pack_words(values.T.contiguous().T, q)
    assert words.dtype == torch.int32
    assert words.shape == (rows, -(-columns * q // 32))
    assert torch.equal(unpack_words(words, q, columns), values)
    for row, numbers in zip(words.tolist(), values.tolist(), strict=True):
        stream = sum(number << (i * q) for i, number in enumerate(numbers))
        assert [word % 2**32 for word in row] == [
            (stream >> 32 * i) % 2**32 for i in range(len(row))
        ]


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 9), st.integers(1, 20), st.integers(0, 99))
def test_a_stream_runs_through_all_rows(q, rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(2**q, (rows, columns), generator=generator, dtype=torch.int16)
    words = pack_stream(values, q)
    assert torch.equal(words, pack_words(values.reshape(1, -1), q)[0])
    assert torch.equal(unpack_stream(words, q, values.numel()), values.flatten())
    places = torch.randperm(values.numel(), generator=generator).view(1, -1)
    assert torch.equal(unpack_some(words, q, places), values.flatten()[places])
