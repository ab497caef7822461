"""A sealed file gives back what was written, or says that it is damaged; what is set aside stays to be looked at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lutlab.atomic import set_aside
from lutlab.digests import Damaged, sealed, sha256_of, unsealed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(JSON, st.text(max_size=5), st.data())
def test_every_damage_of_a_sealed_value_is_noticed(value, name, data):
    whole = sealed(value, name)
    assert unsealed(whole, name) == value
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), whole[:at], b"\0" * len(whole), whole + b"\n"):
        with pytest.raises(Damaged):
            unsealed(damaged, name)
    with pytest.raises(Damaged):
        unsealed(whole, name + "x")


def test_sha256_is_that_of_the_bytes(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256_of(tmp_path / "abc").startswith("ba7816bf8f01cfea")  # FIPS 180-2, appendix B.1


def test_what_is_set_aside_stays(tmp_path):
    file = tmp_path / "file.json"
    for text in ("first", "second", "third"):
        file.write_text(text)
        set_aside(file)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {
        "file.json.damaged": "first",
        "file.json.damaged-2": "second",
        "file.json.damaged-3": "third",
    }
