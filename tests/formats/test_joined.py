"""Weights that were cut by rows are joined to what they were, bit for bit; what does not belong together is refused."""

import pytest
import torch
from tests.kernels.weights import bcq_tensor, uniform_tensor

from lutlab.errors import LutlabError
from lutlab.formats import bcq, cut
from lutlab.formats.dense import PackedDense
from lutlab.formats.joined import joined
from lutlab.formats.uniform import PackedUniform

N, K = 21, 72
UNIFORM = PackedUniform.pack(uniform_tensor(N, K, 3, 32, ordered=True))
WEIGHTS = {
    "uniform": UNIFORM,
    "wide zeros": UNIFORM.with_buffers({"qzero": UNIFORM.zero_point}),
    "planes": bcq.pack(bcq_tensor(N, K, 3, 32, offset="f32", ordered=True)),
    "no offset": bcq.pack(bcq_tensor(N, K, 2, -1, offset=None)),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_joining_is_the_inverse_of_cutting(kind):
    packed = WEIGHTS[kind]
    again = joined([cut.rows(packed, [span]) for span in (range(5), range(5, 13), range(13, N))])
    assert again.layout() == packed.layout()
    for name, buffer in again.buffers.items():
        assert buffer is packed.buffers[name] is None or torch.equal(buffer, packed.buffers[name])


def test_what_is_refused():
    planes = WEIGHTS["planes"]
    other = planes.with_buffers({"order": planes.order.flip(0)})
    for parts, message in (
        ([planes, WEIGHTS["no offset"]], "other layouts cannot be joined"),
        ([planes, other], "in different orders"),
        ([PackedDense(torch.ones(2, 2))], "a PackedDense cannot be joined"),
    ):
        with pytest.raises(LutlabError, match=message):
            joined(parts)
