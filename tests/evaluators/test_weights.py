"""Sizes, errors and ranges against numbers computed by hand; the papers' sizes are LUT-GEMM Eq. 7 and its Table 6's."""

import pytest
import torch
from tests.base.refusals import refused
from tests.evaluators.items import subject
from tests.models.architectures import make, uniform

import lutlab
from lutlab.base.specs import LayerStats
from lutlab.compress.driver import quantize_model
from lutlab.evaluators.group_range import GroupRange, merged_ranges, spread
from lutlab.evaluators.model_size import ModelSize
from lutlab.evaluators.weight_error import WeightError
from lutlab.modules import QuantLinear
from lutlab.quantizers.contract import make_method

PAPERS = {"eq7": 4 * (1 + 16 / 128), "table6": 4 + 16 / 128, "nuqmm": 4 * (1 + 32 / 128)}
FULL = {"eq7": 16, "table6": 16, "nuqmm": 32}


def layer(rows, columns, bits, q=4, g=128, form="uniform", bits_bcq=10**4, average=None):
    stats = (rows, columns, 0.0, 1.0, bits, q, g, form, bits_bcq)
    return LayerStats("layer", *stats, bits_average=average)


def measure(*layers):
    return ModelSize().measure(subject(layers=layers))


def quantized(method="bcq", q=3, g=16, **options):
    """A model, its layers, and their sizes."""
    model = make("opt")
    layers = quantize_model(model, make_method(method, **options), uniform(model, q, g))
    return model, layers, measure(*layers).values


def test_stored_bits_and_the_papers_formulas():
    measured = measure(layer(10, 128, 6400), layer(5, 256, 5120))
    assert measured.n == 2
    assert measured.values == pytest.approx(
        {
            "bits_per_weight": (6400 + 5120) / 2560, "megabytes": 11520 / 8 / 1e6, "ratio": 16 * 2560 / 11520,
            "bits_per_weight_bcq": 2 * 10**4 / 2560, "megabytes_bcq": 2 * 10**4 / 8e6,
        }
        | {f"bits_paper_{name}": bits for name, bits in PAPERS.items()}
        | {f"megabytes_{name}": bits * 2560 / 8e6 for name, bits in PAPERS.items()}
        | {f"ratio_{name}": FULL[name] / bits for name, bits in PAPERS.items()}
    )  # fmt: skip


def test_a_size_says_which_layout_it_counts_and_has_the_papers_average_of_two_widths():
    mixed = [layer(10, 128, 6400), layer(10, 128, 6400, form="bcq")]
    assert measure(*mixed).facts == {"layout": ["bcq", "uniform"], "bits_by_layer": [5.0, 5.0]}
    without = measure(*mixed, layer(10, 128, 6400, form="mine", bits_bcq=None))
    assert without.facts["layout"] == ["bcq", "mine", "uniform"]
    assert {"bits_per_weight_bcq", "megabytes_bcq"}.isdisjoint(without.values)
    mixed = layer(16, 64, 3000, 2.5, 16, "mixed", None, 2.84)
    values = measure(mixed, layer(16, 64, 16 * 1024, 16, -1, "dense", 16 * 1024)).values
    assert values["bits_paper_eq10"] == (2.84 + 16) / 2
    assert not any("eq7" in name or "bcq" in name for name in values)


@pytest.mark.parametrize(
    ("name", "value", "within", "layers"),
    [
        # of several widths
        ("bits_paper_eq7", (3 + 5) / 2 * (1 + 16 / 128), None, [(10, 128, 1, 3, 128), (10, 128, 1, 5, -1)]),
        ("bits_paper_table6", (16 + 4.125) / 2, None, [(10, 128, 1, 16, -1), (10, 128, 1, 4, -1)]),
        ("ratio_nuqmm", 64 / (32 + 5), None, [(10, 128, 1, 16, -1), (10, 128, 1, 4, -1)]),
        # without groups, rows of two lengths: 192 weights at 3 (1 + 16 / 64) and 192 at 3 (1 + 16 / 192)
        ("bits_paper_eq7", (3.75 + 3.25) / 2, None, [(3, 64, 1, 3, -1), (1, 192, 1, 3, -1)]),
        ("bits_paper_table6", (3.25 + (3 + 1 / 12)) / 2, None, [(3, 64, 1, 3, -1), (1, 192, 1, 3, -1)]),
        # as printed
        ("ratio_table6", 6.40, 0.005, [(128, 12288, 1, 2, 32)]),
        ("ratio_table6", 7.11, 0.005, [(128, 12288, 1, 2, 64)]),
        ("ratio_table6", 7.53, 0.005, [(128, 12288, 1, 2, 128)]),
    ],
)  # fmt: skip
def test_layers_count_by_their_own_widths_and_lengths(name, value, within, layers):
    values = measure(*(layer(*sizes) for sizes in layers)).values
    assert values[name] == pytest.approx(value, abs=within)


def test_full_precision_is_sixteen_bits_everywhere():
    _, _, values = quantized("none", 16, -1)
    weights = 2 * (4 * 32 * 32 + 2 * 32 * 48)  # of two blocks: q, k, v, out; fc1, fc2
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
def test_stored_bits_count_every_buffer_also_in_binary_form(method, options, bits):
    model, layers, values = quantized(method, **options)
    stored = [layer.bits_stored for layer in layers]
    assert stored == [layer.out_features * bits(layer.in_features) for layer in layers]
    names = {"planes", "alpha", "offset", "qweight", "scale", "qzero"}
    buffers = (b for name, b in model.named_buffers() if name.rpartition(".")[2] in names)
    assert sum(stored) == sum(8 * buffer.nbytes for buffer in buffers)
    assert values["megabytes"] == sum(stored) / 8e6
    packed = [module.packed for module in model.modules() if isinstance(module, QuantLinear)]
    assert values["megabytes_bcq"] == sum(weight.to_bcq().bits_stored for weight in packed) / 8e6
    assert (values["megabytes_bcq"] == values["megabytes"]) == (method == "bcq")


@pytest.mark.parametrize(
    ("layers", "error", "samples"),
    [
        ({"first": (1.0, 4.0), "second": (0.5, 16.0)}, 1.5 / 20.0, (0.25, 0.03125)),  # not the mean
        ({"zero": (0.0, 0.0), "other": (1.0, 2.0)}, 0.5, (0.0, 0.5)),
        ({"zero": (0.0, 0.0)}, 0.0, (0.0,)),
    ],
)
def test_errors_are_summed_before_they_are_divided(layers, error, samples):
    stats = [LayerStats(k, 2, 8, *v, 64, 3, 8, "bcq", bits_bcq=64) for k, v in layers.items()]
    measured = WeightError().measure(subject(layers=stats))
    assert (measured.values, measured.n) == ({"weight_relative_mse": error}, len(layers))
    assert (measured.samples, measured.facts) == (samples, {"layers": [*layers]})


def test_ranges_are_squared_and_summed_over_rows_and_their_largest_is_told_by_the_median():
    weight = torch.zeros(2, 20)
    weight[0, 0], weight[0, 1], weight[1, 9], weight[1, 17] = 1, -2, 2, 5  # groups of 8, 8 and 4
    assert merged_ranges(weight, 8).tolist() == [9, 4, 25]
    assert spread(torch.tensor([1.0, 1, 1, 1])) == (1, 0.25)
    assert spread(torch.tensor([1.0, 4, 2, 2, 3, 2, 2, 2])) == (2, 7 / 18)
    assert spread(torch.zeros(8)) == (1, 0.25)
    assert spread(torch.tensor([0.0, 0, 0, 1])) == (float("inf"), 1)


def test_a_models_range_is_the_mean_and_the_most_of_its_layers():
    model = make("opt")
    measured = GroupRange(8).measure(subject(model))
    mean, most = (measured.values[f"range_largest_over_median{end}"] for end in ("", "_max"))
    assert mean == pytest.approx(sum(measured.samples) / measured.n)
    assert most == max(measured.samples) >= mean >= 1
    again = GroupRange(8).measure(subject(lutlab.quantize(model, q=8, g=8)))
    assert again.samples == pytest.approx(measured.samples, rel=0.05)
    message = r"one group of 4096: give a smaller evaluator\.group_range\.g"
    refused(message, GroupRange(4096).measure, subject(make("opt")))
