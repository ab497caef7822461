"""Parts of a packed weight: dequantized, the parts of the whole, bit for bit; together, the whole; joined, the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.weights import bcq_tensor, uniform_tensor
from tests.mixed_weights import mixed_tensor

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import DenseTensor, UniformTensor
from lutlab.formats import bcq, cut
from lutlab.formats.dense import PackedDense
from lutlab.formats.uniform import PackedUniform


@st.composite
def weights(draw):
    rows, columns = draw(st.integers(2, 9)), draw(st.integers(16, 200))
    q, g = draw(st.integers(1, 8)), draw(st.sampled_from([-1, 8, 12, 16, 32, 128]))
    ordered = draw(st.booleans())
    kind = draw(st.sampled_from(["uniform", "wide zeros", "shift", "bcq", "bcq offset", "dense"]))
    if kind == "dense":
        return formats.pack(DenseTensor(torch.randn(rows, columns)))
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
    empty = type(part).from_layout(part.layout())
    for name, buffer in part.buffers.items():
        made = empty.buffers[name]
        assert (made is None) == (buffer is None)
        if buffer is not None:
            assert (made.shape, made.dtype) == (buffer.shape, buffer.dtype), name
            assert buffer.is_contiguous()
            assert buffer.untyped_storage().nbytes() == buffer.nbytes, name
    again = formats.pack(part.unpack()).dequantize()
    dense = part.dequantize()
    assert torch.equal(again, dense)
    return dense


@settings(max_examples=25, deadline=None)
@given(weights(), st.data())
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


@pytest.mark.parametrize(
    ("aligned", "by_row", "outliers"), [(True, True, 60), (False, False, 40), (False, True, 0)]
)
def test_mixed_groups_are_cut_with_their_bands_and_outliers(aligned, by_row, outliers):
    tensor = mixed_tensor(40, 150, by_row=by_row, outliers=outliers, aligned=aligned)
    packed = formats.pack(tensor)
    whole = packed.dequantize()
    parts = [checked(cut.columns(packed, span)) for span in (range(96), range(96, 150))]
    assert torch.equal(torch.cat(parts, 1), whole)
    spans = [range(16, 32), range(32, 40)]
    assert torch.equal(checked(cut.rows(packed, spans)), whole[16:])
    for part, span in ((cut.columns, range(8, 64)), (cut.rows, [range(8, 16)])):
        with pytest.raises(LutlabError, match=r" 8 to .* cannot be cut out: 16 of them share"):
            part(packed, span)


def test_a_cut_that_no_group_can_say_and_one_of_another_format_are_refused():
    packed = formats.pack(uniform_tensor(4, 64, 3, 16))
    with pytest.raises(LutlabError, match=r"from 20 on, of groups of 16, .* groups of 4 would be"):
        cut.columns(packed, range(20, 64))
    assert cut.columns(packed, range(20, 30)).group_size == -1  # inside one group
    for parts, span in ((cut.rows, [range(4)]), (cut.columns, range(16))):
        with pytest.raises(LutlabError, match=r"a object cannot be cut: .* on one device"):
            parts(object(), span)


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
    packed = WEIGHTS[kind]
    again = cut.joined(
        [cut.rows(packed, [span]) for span in (range(5), range(5, 13), range(13, N))]
    )
    assert again.layout() == packed.layout()
    for name, buffer in again.buffers.items():
        assert buffer is packed.buffers[name] is None or torch.equal(buffer, packed.buffers[name])


def test_what_cannot_be_joined():
    planes = WEIGHTS["planes"]
    other = planes.with_buffers({"order": planes.order.flip(0)})
    for parts, message in (
        ([planes, WEIGHTS["no offset"]], "other layouts cannot be joined"),
        ([planes, other], "in different orders"),
        ([PackedDense(torch.ones(2, 2))], "a PackedDense cannot be joined"),
    ):
        with pytest.raises(LutlabError, match=message):
            cut.joined(parts)
