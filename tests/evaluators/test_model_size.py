"""Sizes against numbers computed by hand; the papers' formulas are LUT-GEMM Eq. 7 and what its Table 6 prints."""

import pytest
import torch
from tests.models.architectures import make, uniform
from tests.tiny_models import RUN

from lutlab.base.specs import LayerStats, Subject
from lutlab.compress.driver import quantize_model
from lutlab.evaluators.model_size import ModelSize
from lutlab.modules import QuantLinear
from lutlab.quantizers.contract import make_method


def measure(layers):
    return ModelSize().measure(Subject(None, None, tuple(layers), None, 64, RUN))


def layer(rows, columns, bits, q=4, g=128, form="uniform", bits_bcq=10**4):
    return LayerStats("layer", rows, columns, 0.0, 1.0, bits, q, g, form, bits_bcq)


def test_stored_bits_and_the_papers_formulas():
    found = measure([layer(10, 128, 6400), layer(5, 256, 5120)])
    assert found.n == 2
    bits = {"eq7": 4 * (1 + 16 / 128), "table6": 4 + 16 / 128, "nuqmm": 4 * (1 + 32 / 128)}
    full = {"eq7": 16, "table6": 16, "nuqmm": 32}
    assert found.values == pytest.approx(
        {
            "bits_per_weight": (6400 + 5120) / 2560,
            "megabytes": 11520 / 8 / 1e6,
            "ratio": 16 * 2560 / 11520,
            "bits_per_weight_bcq": 2 * 10**4 / 2560,
            "megabytes_bcq": 2 * 10**4 / 8e6,
        }
        | {f"bits_paper_{name}": value for name, value in bits.items()}
        | {f"megabytes_{name}": value * 2560 / 8e6 for name, value in bits.items()}
        | {f"ratio_{name}": full[name] / value for name, value in bits.items()}
    )


def test_a_size_says_which_layout_it_counts():
    mixed = [layer(10, 128, 6400), layer(10, 128, 6400, form="bcq")]
    assert measure(mixed).facts == {"layout": ["bcq", "uniform"], "bits_by_layer": [5.0, 5.0]}
    without = measure([*mixed, layer(10, 128, 6400, form="mine", bits_bcq=None)])
    assert without.facts["layout"] == ["bcq", "mine", "uniform"]
    assert {"bits_per_weight_bcq", "megabytes_bcq"}.isdisjoint(without.values)


def test_the_binary_form_is_that_of_the_weights():
    for method in ("rtn", "bcq"):
        model = make("opt")
        values = measure(quantize_model(model, make_method(method), uniform(model, 3, 16))).values
        packed = [m.packed for m in model.modules() if isinstance(m, QuantLinear)]
        binary = sum(one.to_bcq().bits_stored for one in packed)
        assert values["megabytes_bcq"] == binary / 8e6
        assert (values["megabytes_bcq"] == values["megabytes"]) == (method == "bcq")


def test_layers_of_several_widths_count_by_their_own():
    found = measure([layer(10, 128, 6400, 3, 128), layer(10, 128, 6400, 5, -1)])
    assert found.values["bits_paper_eq7"] == pytest.approx((3 + 5) / 2 * (1 + 16 / 128))
    half = measure([layer(10, 128, 6400, 16, -1), layer(10, 128, 6400, 4, -1)])
    assert half.values["bits_paper_table6"] == pytest.approx((16 + 4.125) / 2)
    assert half.values["ratio_nuqmm"] == pytest.approx(64 / (32 + 5))


@pytest.mark.parametrize(("g", "printed"), [(32, 6.40), (64, 7.11), (128, 7.53)])
def test_the_ratios_of_table_6(g, printed):
    found = measure([layer(128, 12288, 1, 2, g)])
    assert round(found.values["ratio_table6"], 2) == printed


def test_rows_without_groups_share_one_scale_by_their_own_length():
    found = measure([layer(3, 64, 9, 3, -1), layer(1, 192, 9, 3, -1)])
    # 192 weights at 3 * (1 + 16 / 64) = 3.75 and 192 at 3 * (1 + 16 / 192) = 3.25
    assert found.values["bits_paper_eq7"] == pytest.approx((3.75 + 3.25) / 2)
    assert found.values["bits_paper_table6"] == pytest.approx((3.25 + (3 + 1 / 12)) / 2)


def test_full_precision_is_sixteen_bits_everywhere():
    model = make("opt")
    stats = quantize_model(model, make_method("none"), uniform(model, 16, -1))
    weights = 2 * (4 * 32 * 32 + 2 * 32 * 48)  # of two blocks: q, k, v, out; fc1, fc2
    values = measure(stats).values
    assert values["megabytes"] == values["megabytes_eq7"] == 2 * weights / 1e6
    sixteen = ("per_weight", "per_weight_bcq", "paper_eq7", "paper_table6")
    assert {values[f"bits_{name}"] for name in sixteen} == {16}
    assert values["bits_paper_nuqmm"] == 32
    assert {v for name, v in values.items() if name.startswith("ratio")} == {1.0}


@pytest.mark.parametrize(
    ("method", "options", "bits"),
    [
        # K = 32 or 48 in groups of 16: every group stores an fp16 scale and a 3-bit zero point, words pad 144 to 160;
        # or q = 3 fp16 alphas and an offset, planes pad 48 to 64
        ("rtn", {}, lambda k: -(-3 * k // 32) * 32 + k // 16 * (16 + 3)),
        ("bcq", {}, lambda k: 3 * -(-k // 32) * 32 + k // 16 * 3 * 16),
        ("bcq", {"offset": True}, lambda k: 3 * -(-k // 32) * 32 + k // 16 * 4 * 16),
    ],
)
def test_stored_bits_count_every_buffer(method, options, bits):
    model = make("opt")
    stats = quantize_model(model, make_method(method, **options), uniform(model, 3, 16))
    assert [s.bits_stored for s in stats] == [s.out_features * bits(s.in_features) for s in stats]
    buffers = dict(model.named_buffers())
    names = {"planes", "alpha", "offset", "qweight", "scale", "qzero"}
    total = sum(8 * b.nbytes for n, b in buffers.items() if n.rpartition(".")[2] in names)
    assert measure(stats).values["megabytes"] == total / 8e6
    assert torch.tensor([s.bits_stored for s in stats]).sum() == total


def test_groups_of_two_widths_have_the_papers_average_and_no_other():
    layer = LayerStats("mixed", 16, 64, 1.0, 2.0, 3000, 2.5, 16, "mixed", None, bits_average=2.84)
    kept = LayerStats("kept", 16, 64, 0.0, 2.0, 16 * 1024, 16, -1, "dense", 16 * 1024)
    found = ModelSize().measure(Subject(None, None, (layer, kept), None, 0, RUN)).values
    assert found["bits_paper_eq10"] == (2.84 + 16) / 2
    assert not any("eq7" in name or "bcq" in name for name in found)
