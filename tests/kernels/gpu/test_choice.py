"""Which kernel a product on a GPU takes: by the model, by what was raced, and from a damaged file."""

import pytest
from tests.kernels.checks import F16, F32, refused

from lutlab.base.kept.files import sealed, unsealed
from lutlab.kernels.gpu import choice, variants
from lutlab.kernels.gpu.choice import DENSE, MODEL, RACE, Race, choose, keep
from lutlab.kernels.gpu.lut_gemv.variant import H200, Case

pytestmark = pytest.mark.usefixtures("cache")


def product(m=1, q=3, x=F16, uniform=False, g=128, shape=(4096, 4096)):
    return Case(m, *shape, q, g, x, F16, F16, uniform)


def raced(seconds, g=128, shape=(4096, 4096)):
    """A race is kept; seconds: by rows of x, or of a single one."""
    by_rows = seconds if 1 in seconds else {1: seconds}
    return keep([Race("GPU", "float16", False, 3, g, shape, by_rows)])


def chosen(gpu="GPU", **how):
    return choose(product(**how), H200, gpu)


def model(**how):
    name, why = chosen(**how)
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
    few, many = {"lane_tables": 1.0, "bit_planes": 2.0, DENSE: 9.0}, {"bit_planes": 3.0, DENSE: 2.5}
    raced({1: few, 8: many})
    assert chosen() == ("lane_tables", RACE)
    for m in (2, 8, 1000):
        assert chosen(m=m) == (DENSE, RACE)
    for other in ({"q": 4}, {"x": F32}, {"uniform": True}, {"gpu": "another GPU"}):
        assert chosen(**other)[1] == MODEL


def test_the_race_most_like_a_product_counts():
    raced({"lane_tables": 1.0})
    raced({"bit_planes": 1.0}, g=32)
    raced({"paper": 1.0}, shape=(49152, 12288))
    assert chosen() == ("lane_tables", RACE)
    assert chosen(g=64, shape=(2048, 4096))[0] in ("lane_tables", "bit_planes")
    assert chosen(g=32) == ("bit_planes", RACE)
    assert chosen(shape=(28672, 8192)) == ("paper", RACE)


def test_a_winner_that_cannot_take_the_product_is_passed_over():
    raced({"bit_planes": 1.0, "paper": 2.0, DENSE: 3.0})
    assert chosen(g=40) == ("paper", RACE)


def test_a_later_race_replaces_an_earlier_one_even_of_short_names():
    raced({"r3": 1.0, "r4": 2.0, DENSE: 9.0})
    assert chosen() == ("lane_tables", RACE)
    path = raced({"bit_planes": 1.0})
    assert chosen() == ("bit_planes", RACE)
    assert path.read_text().count('"gpu"') == 1


@pytest.mark.parametrize("wrong", [
    {"shape": [0, 4096]}, {"group": -1}, {"more": 1},
    {"seconds": {}}, {"seconds": {"1": {"paper": float("nan")}}}, {"seconds": {"0": {"paper": 1.0}}},
])  # fmt: skip
def test_numbers_that_no_race_has_count_as_damage(caplog, wrong):
    path = raced({"paper": 1.0})
    (race,) = unsealed(path.read_bytes(), path.name)
    path.write_bytes(sealed([race | wrong], path.name))
    choice._read.cache_clear()
    assert chosen()[1] == MODEL
    assert f"{path} is damaged (" in caplog.text
    raced({"paper": 1.0})
    assert chosen()[1] == RACE


def test_what_no_kernel_takes_is_refused():
    old = H200.__class__("sm_60", 56, 49_152, 65_536)
    refused("no kernel takes this product", choose, product(), old, "GPU")
