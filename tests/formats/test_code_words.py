"""Words hold what their picture says, and give it back."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lutlab.formats import code_words

SIZES = (st.integers(1, 8), st.integers(1, 9), st.integers(1, 70), st.integers(0, 99))


@given(*SIZES)
def test_words_and_back(q, rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(2**q, (rows, columns), generator=generator, dtype=torch.uint8)
    words = code_words.pack_words(values.T.contiguous().T, q)
    assert (words.dtype, words.shape) == (torch.int32, (rows, -(-columns * q // 32)))
    assert torch.equal(code_words.unpack_words(words, q, columns), values)
    for row, numbers in zip(words.tolist(), values.tolist(), strict=True):
        stream = sum(number << (i * q) for i, number in enumerate(numbers))
        assert [word % 2**32 for word in row] == [stream >> 32 * i & 2**32 - 1 for i in range(len(row))]  # fmt: skip


@given(*SIZES)
def test_a_stream_runs_through_all_rows(q, rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(2**q, (rows, columns), generator=generator, dtype=torch.int16)
    words = code_words.pack_stream(values, q)
    assert torch.equal(words, code_words.pack_words(values.reshape(1, -1), q)[0])
    assert torch.equal(code_words.unpack_stream(words, q, values.numel()), values.flatten())
    places = torch.randperm(values.numel(), generator=generator).view(1, -1)
    assert torch.equal(code_words.unpack_some(words, q, places), values.flatten()[places])
