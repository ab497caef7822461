"""Sizes against numbers computed by hand; the papers' formulas are LUT-GEMM Eq. 7 and what its Table 6 prints."""

import pytest
import torch
from tests.models.architectures import make

from lutlab.api import make_quantizer
from lutlab.apply import quantize_model
from lutlab.evaluators.model_size import ModelSize
from lutlab.records import LayerStats, Subject


def measure(layers, q, g):
    return ModelSize().measure(Subject(None, None, tuple(layers), None, 64, q, g))


def layer(rows, columns, bits):
    return LayerStats("layer", rows, columns, 0.0, 1.0, bits)


def test_stored_bits_and_the_papers_formulas():
    found = measure([layer(10, 128, 6400), layer(5, 256, 5120)], q=4, g=128)
    assert found.n == 2
    assert found.values == {
        "bits_per_weight": (6400 + 5120) / 2560,
        "megabytes": 11520 / 8 / 1e6,
        "bits_paper_eq7": 4 * (1 + 16 / 128),  # 4.5
        "bits_paper_table6": 4 + 16 / 128,  # 4.125
    }


def test_rows_without_groups_share_one_scale_by_their_own_length():
    found = measure([layer(3, 64, 0), layer(1, 192, 0)], q=3, g=-1)
    # 192 weights at 3 * (1 + 16 / 64) = 3.75 and 192 at 3 * (1 + 16 / 192) = 3.25
    assert found.values["bits_paper_eq7"] == pytest.approx((3.75 + 3.25) / 2)
    assert found.values["bits_paper_table6"] == pytest.approx((3.25 + (3 + 1 / 12)) / 2)


def test_full_precision_is_sixteen_bits_everywhere():
    model = make("opt")
    stats = quantize_model(model, make_quantizer("none"), 16, -1)
    weights = 2 * (4 * 32 * 32 + 2 * 32 * 48)  # of two blocks: q, k, v, out; fc1, fc2
    found = measure(stats, q=16, g=-1)
    assert found.values == {
        "bits_per_weight": 16.0,
        "megabytes": 2 * weights / 1e6,
        "bits_paper_eq7": 16.0,
        "bits_paper_table6": 16.0,
    }


@pytest.mark.parametrize(
    ("method", "options", "bits"),
    [
        # K = 32 or 48 in groups of 16: every group stores q = 3 fp16 alphas and an offset; planes pad 48 to 64
        ("rtn", {}, lambda k: 3 * -(-k // 32) * 32 + k // 16 * (3 * 16 + 32)),
        ("bcq", {}, lambda k: 3 * -(-k // 32) * 32 + k // 16 * 3 * 16),
        ("bcq", {"offset": True}, lambda k: 3 * -(-k // 32) * 32 + k // 16 * 4 * 16),
    ],
)
def test_stored_bits_count_every_buffer(method, options, bits):
    model = make("opt")
    stats = quantize_model(model, make_quantizer(method, **options), 3, 16)
    assert [s.bits_stored for s in stats] == [s.out_features * bits(s.in_features) for s in stats]
    buffers = dict(model.named_buffers())
    total = sum(
        8 * b.nbytes for n, b in buffers.items() if n.endswith(("planes", "alpha", "offset"))
    )
    assert measure(stats, 3, 16).values["megabytes"] == total / 8e6
    assert torch.tensor([s.bits_stored for s in stats]).sum() == total
