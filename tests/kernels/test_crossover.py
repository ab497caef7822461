"""Where cuBLAS takes over: the model, what was measured, and what is kept."""

import logging

import pytest

from lutlab.kernels.crossover import NEVER, crossover, first_slower, keep, model


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    return tmp_path


def test_the_model_counts_bytes():
    for batch, q, itemsize in ((1, 3, 2), (16, 4, 2), (1, 8, 4)):
        rows = model(batch, q, itemsize)
        dense = q / 8 + 2 * itemsize
        assert -(-rows // batch) * q / 8 > dense
        assert -(-(rows - batch) // batch) * q / 8 <= dense


def test_what_was_measured_takes_the_place_of_the_model():
    before = crossover("GPU", "r5", 16, 4, 2)
    assert (before.rows, before.measured) == (145, False)
    assert before.describe() == "from 145 rows on, by a model of bytes"
    keep("GPU", "r5", 4, 2, 48)
    keep("GPU", "r5", 3, 2, 64)
    assert crossover("GPU", "r5", 16, 4, 2).describe() == "from 48 rows on, measured"
    assert crossover("GPU", "r5", 16, 3, 2).rows == 64
    assert not crossover("other GPU", "r5", 16, 4, 2).measured
    assert not crossover("GPU", "r5", 16, 4, 4).measured


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": "b"}'])
def test_damage_is_told(own_cache, caplog, text):
    path = keep("GPU", "r1", 3, 2, 9)
    path.write_text(text)
    from lutlab.kernels import crossover as module

    module._read.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not crossover("GPU", "r1", 1, 3, 2).measured
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize(
    ("kernel", "dense", "rows"),
    [
        ({8: 1.0, 16: 2.0, 32: 4.0}, {8: 3.0, 16: 3.0, 32: 3.0}, 32),
        ({8: 1.0, 16: 4.0, 32: 2.0}, {8: 3.0, 16: 3.0, 32: 3.0}, NEVER),
        ({8: 4.0, 16: 4.0}, {8: 3.0, 16: 3.0}, 8),
    ],
)
def test_dense_has_to_win_from_there_on(kernel, dense, rows):
    assert first_slower(kernel, dense) == rows
