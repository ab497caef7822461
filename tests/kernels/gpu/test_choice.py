"""Which kernel a product on a GPU takes: by the model, by what was raced, and from a damaged file."""

import logging

import pytest
import torch

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import sealed, unsealed
from lutlab.kernels.gpu import choice, variants
from lutlab.kernels.gpu.choice import DENSE, MODEL, RACE, Race, choose, keep
from lutlab.kernels.gpu.lut_gemv.variant import H200, Case

F16, F32 = torch.float16, torch.float32


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    return tmp_path


def product(m=1, q=3, x=F16, uniform=False, g=128, shape=(4096, 4096)):
    return Case(m, *shape, q, g, x, F16, F16, uniform)


def raced(seconds, q=3, g=128, shape=(4096, 4096), x="float16", gpu="GPU"):
    return Race(gpu, x, False, q, g, shape, seconds)


def model(**how):
    name, why = choose(product(**how), H200, "GPU")
    assert why == MODEL
    return name


def test_the_model_prefers_who_takes_the_fewest_readings():
    assert model(uniform=True) == model(uniform=True, m=16) == "uniform_mma"
    assert model() == model(m=16) == model(g=32) == "bit_planes"
    assert model(m=5, x=F32, uniform=True) == "bit_planes"
    assert model(g=40) == "paper"


@pytest.mark.parametrize("q", [1, 3, 8])
@pytest.mark.parametrize("x", [F16, F32])
def test_the_model_counts_bytes(q, x):
    dense = q / 8 + 2 * x.itemsize
    batch = variants.variant("bit_planes").batch(product(x=x))
    for m in range(9, 600, 7):
        kernel = -(-m // batch) * q / 8
        assert (model(m=m, q=q, x=x) == DENSE) == (kernel > dense)


def test_what_won_a_race_takes_the_place_of_the_model():
    keep(
        [
            raced(
                {
                    1: {"lane_tables": 1.0, "bit_planes": 2.0, DENSE: 9.0},
                    8: {"bit_planes": 3.0, DENSE: 2.5},
                }
            )
        ]
    )
    assert choose(product(), H200, "GPU") == ("lane_tables", RACE)
    for m in (2, 8, 1000):
        assert choose(product(m), H200, "GPU") == (DENSE, RACE)
    for other in (product(q=4), product(x=F32), product(uniform=True)):
        assert choose(other, H200, "GPU")[1] == MODEL
    assert choose(product(), H200, "another GPU")[1] == MODEL


def test_the_race_most_like_a_product_counts():
    keep([raced({1: {"lane_tables": 1.0}}), raced({1: {"bit_planes": 1.0}}, g=32)])
    keep([raced({1: {"paper": 1.0}}, shape=(49152, 12288))])
    assert choose(product(), H200, "GPU")[0] == "lane_tables"
    assert choose(product(g=64, shape=(2048, 4096)), H200, "GPU")[0] in (
        "lane_tables",
        "bit_planes",
    )
    assert choose(product(g=32), H200, "GPU")[0] == "bit_planes"
    assert choose(product(shape=(28672, 8192)), H200, "GPU")[0] == "paper"


def test_a_race_of_before_has_short_names():
    keep([raced({1: {"r3": 1.0, "r4": 2.0, DENSE: 9.0}})])
    assert choose(product(), H200, "GPU") == ("lane_tables", RACE)


def test_a_winner_that_cannot_take_the_product_is_passed_over():
    keep([raced({1: {"bit_planes": 1.0, "paper": 2.0, DENSE: 3.0}})])
    assert choose(product(g=40), H200, "GPU") == ("paper", RACE)


def test_a_later_race_replaces_an_earlier_one():
    keep([raced({1: {"lane_tables": 1.0}})])
    path = keep([raced({1: {"bit_planes": 1.0}})])
    assert choose(product(), H200, "GPU")[0] == "bit_planes"
    assert path.read_text().count('"gpu"') == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": [0, 4096]},
        {"group": -1},
        {"seconds": {}},
        {"seconds": {"1": {"paper": float("nan")}}},
        {"seconds": {"0": {"paper": 1.0}}},
        {"more": 1},
    ],
)
def test_numbers_that_no_race_has_count_as_damage(caplog, wrong):
    path = keep([raced({1: {"paper": 1.0}})])
    (race,) = unsealed(path.read_bytes(), path.name)
    path.write_bytes(sealed([race | wrong], path.name))
    choice._read.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert choose(product(), H200, "GPU")[1] == MODEL
    assert f"{path} is damaged (" in caplog.text
    keep([raced({1: {"paper": 1.0}})])
    assert choose(product(), H200, "GPU")[1] == RACE


def test_what_no_kernel_takes_is_refused():
    old = H200.__class__("sm_60", 56, 49_152, 65_536)
    with pytest.raises(LutlabError, match="no kernel takes this product"):
        choose(product(), old, "GPU")
