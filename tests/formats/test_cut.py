"""Parts of a packed weight: dequantized, the parts of the whole, bit for bit; together, the whole; joined, the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.layouts import made_again
from tests.kernels.weights import (
    bcq_tensor,
    second_order_tensor,
    uniform_second_order_tensor,
    uniform_tensor,
)
from tests.mixed_weights import mixed_tensor
from tests.quantizers.weights import assert_same, drawn

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import DenseTensor, UniformTensor
from lutlab.formats import bcq, cut
from lutlab.formats.dense import PackedDense
from lutlab.formats.uniform import PackedUniform


def weight(kind, rows, columns, q, g, ordered):
    if kind == "dense":
        return formats.pack(DenseTensor(drawn(rows, columns)))
    if kind == "second order":
        return formats.pack(second_order_tensor(rows, columns, min(q, 4), g, ordered=ordered))
    if kind == "uniform second order":
        return formats.pack(uniform_second_order_tensor(rows, columns, q, g, ordered=ordered))
    if kind.startswith("bcq"):
        offset = "f32" if kind == "bcq offset" else None
        return formats.pack(bcq_tensor(rows, columns, min(q, 4), g, offset=offset, ordered=ordered))
    if kind == "shift":
        return formats.pack(uniform_tensor(rows, columns, q, g, shift="f32", ordered=ordered))
    tensor = uniform_tensor(rows, columns, q, g, ordered=ordered)
    zero = tensor.zero_point - 99 if kind == "wide zeros" else tensor.zero_point.clamp(0, 2**q - 1)
    return formats.pack(UniformTensor(**{**vars(tensor), "zero_point": zero}))


def checked(part):
    """A part is a weight of its format like any other, and owns what it holds."""
    made_again(part)
    for name, buffer in part.buffers.items():
        if buffer is not None:
            assert buffer.is_contiguous(), name
            assert buffer.untyped_storage().nbytes() == buffer.nbytes, name
    dense = part.dequantize()
    assert torch.equal(formats.pack(part.unpack()).dequantize(), dense)
    return dense


@given(st.builds(
    weight, st.sampled_from(["uniform", "wide zeros", "shift", "bcq", "bcq offset", "second order",
                            "uniform second order", "dense"]),
    st.integers(2, 9), st.integers(16, 200), st.integers(1, 8), st.sampled_from([-1, 8, 12, 16, 32, 128]),
    st.booleans(),
), st.data())  # fmt: skip
def test_parts_are_the_parts_of_the_whole_and_make_it(packed, data):
    rows, columns = packed.shape
    whole = packed.dequantize()
    a, b = sorted((data.draw(st.integers(0, rows - 1)), data.draw(st.integers(1, rows))))
    spans = [range(a, max(a + 1, b)), range(1)]
    chosen = torch.cat([whole[s.start : s.stop] for s in spans])
    assert torch.equal(checked(cut.rows(packed, spans)), chosen)

    channels = cut.order(packed)
    channels = torch.arange(columns) if channels is None else channels.long()
    at = 8 * data.draw(st.integers(1, (columns - 1) // 8))
    if cut.group_size(packed) == 12:  # 8 lies inside a group of 12, and 4 is too fine
        at = max(24 * (at // 24), 12)
    parts = [checked(cut.columns(packed, span)) for span in (range(at), range(at, columns))]
    assert torch.equal(torch.cat(parts, 1), whole[:, channels])


@pytest.mark.parametrize("options", [
    {"outliers": 60, "aligned": True}, {"outliers": 40, "by_row": False}, {"outliers": 0},
])  # fmt: skip
def test_mixed_groups_are_cut_with_their_bands_and_outliers(options):
    packed = formats.pack(mixed_tensor(40, 150, **options))
    whole = packed.dequantize()
    parts = [checked(cut.columns(packed, span)) for span in (range(96), range(96, 150))]
    assert torch.equal(torch.cat(parts, 1), whole)
    assert torch.equal(checked(cut.rows(packed, [range(16, 32), range(32, 40)])), whole[16:])
    for part, span in ((cut.columns, range(8, 64)), (cut.rows, [range(8, 16)])):
        with pytest.raises(LutlabError, match=r" 8 to .* cannot be cut out: 16 of them share"):
            part(packed, span)


N, K = 21, 72
CODES = PackedUniform.pack(uniform_tensor(N, K, 3, 32, ordered=True))
WEIGHTS = {
    "uniform": CODES,
    "shift": PackedUniform.pack(uniform_tensor(N, K, 4, 32, shift="f16", ordered=True)),
    "wide zeros": CODES.with_buffers({"qzero": CODES.zero_point}),
    "planes": bcq.pack(bcq_tensor(N, K, 3, 32, offset="f32", ordered=True)),
    "no offset": bcq.pack(bcq_tensor(N, K, 2, -1, offset=None)),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_joining_is_the_inverse_of_cutting(kind):
    packed, spans = WEIGHTS[kind], (range(5), range(5, 13), range(13, N))
    again = cut.joined([cut.rows(packed, [span]) for span in spans])
    assert again.layout() == packed.layout()
    assert_same(again.buffers, packed.buffers)
    channels = torch.arange(K) if packed.order is None else packed.order.long()
    halves = [checked(cut.columns(packed, span)) for span in (range(32), range(32, K))]
    assert_same(torch.cat(halves, 1), packed.dequantize()[:, channels])


PLANES = WEIGHTS["planes"]
GROUPS = formats.pack(uniform_tensor(4, 64, 3, 16))


@pytest.mark.parametrize(("made", "arguments", "message"), [
    (cut.columns, (GROUPS, range(20, 64)), r"from 20 on, of groups of 16, .* groups of 4 would be"),
    (cut.rows, (object(), [range(4)]), r"a object cannot be cut: .* on one device"),
    (cut.columns, (object(), range(16)), r"a object cannot be cut: .* on one device"),
    (cut.joined, ([PLANES, WEIGHTS["no offset"]],), "other layouts cannot be joined"),
    (cut.joined, ([PLANES, PLANES.with_buffers({"order": PLANES.order.flip(0)})],), "in different orders"),
    (cut.joined, ([PackedDense(torch.ones(2, 2))],), "a PackedDense cannot be joined"),
])  # fmt: skip
def test_what_cannot_be_cut_or_joined(made, arguments, message):
    with pytest.raises(LutlabError, match=message):
        made(*arguments)


def test_inside_a_group_there_is_one_group():
    assert cut.columns(GROUPS, range(20, 30)).group_size == -1
