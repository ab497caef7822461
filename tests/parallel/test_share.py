"""Parts of a model that ranks have: of real shapes, and what cannot be shared."""

import pytest

from lutlab.base.errors import LutlabError
from lutlab.models.families import family_named
from lutlab.parallel.shard import Width, share_of

Q, K, V, O = (f"self_attn.{n}_proj" for n in "qkvo")  # noqa: E741
GATE, UP, DOWN = (f"mlp.{n}_proj" for n in ("gate", "up", "down"))


def llama(count, hidden=4096, inner=11008, heads=32, kv=None, g=128, **down):
    keys = hidden * (kv or heads) // heads
    widths = {Q: Width(hidden, hidden, g), K: Width(keys, hidden, g), V: Width(keys, hidden, g)}
    widths |= {O: Width(hidden, hidden, g), GATE: Width(inner, hidden, g)}
    widths |= {UP: Width(inner, hidden, g), DOWN: Width(hidden, inner, g, **down)}
    return [share_of(family_named("llama"), widths, heads, i, count) for i in range(count)]


def test_channels_that_do_not_divide_by_groups_are_cut_where_groups_end():
    shares = llama(4)
    assert [len(one.columns[DOWN][0]) // 128 for one in shares] == [22, 22, 21, 21]
    for one in shares:
        assert one.rows[GATE] == one.rows[UP] == one.columns[DOWN][:1]
        assert one.columns[O] == one.rows[Q] * 2
    ends = [one.columns[DOWN][0] for one in shares]
    assert (ends[0].start, ends[-1].stop) == (0, 11008)
    assert [a.stop for a in ends[:-1]] == [b.start for b in ends[1:]]
    assert [len(one.columns[DOWN][0]) for one in llama(4, g=-1)] == [2752] * 4


def test_key_value_heads_fewer_than_ranks_are_held_by_several():
    shares = llama(8, heads=32, kv=4)
    assert [one.key_values for one in shares] == [range(i // 2, i // 2 + 1) for i in range(8)]
    assert [len(one.heads) for one in shares] == [4] * 8
    assert [len(one.key_values) for one in llama(2, heads=32, kv=4)] == [2, 2]


def test_columns_with_an_order_are_cut_apart_from_channels():
    part = llama(4, ordered=True)[1].columns[DOWN]
    assert part == (range(2816, 5632), range(2816, 5632))
    last = llama(4, inner=11000, ordered=True)[3].columns[DOWN]
    assert last[0] == range(65 * 128, 11000)


def test_layers_of_several_parts_are_cut_in_each():
    widths = {"attn.c_attn": Width(96, 32), "attn.c_proj": Width(32, 32)}
    widths |= {"mlp.c_fc": Width(64, 32), "mlp.c_proj": Width(32, 64)}
    share = share_of(family_named("gpt2"), widths, 4, 1, 2)
    thirds = (range(16, 32), range(48, 64), range(80, 96))
    assert share.rows["attn.c_attn"] == thirds
    assert (share.heads, share.key_values, share.head_size) == (range(2, 4), range(2, 4), 8)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"count": 8, "heads": 52, "hidden": 6656}, r"52 attention heads with 52 of .* by 8 ranks"),
        (
            {"count": 4, "heads": 24, "kv": 6, "hidden": 3072},
            r"24 attention heads with 6 of .* by 4",
        ),
        (
            {"count": 4, "inner": 320},
            r"320 intermediate channels in units of 128 .* by 4 .*: 3 can",
        ),
    ],
)
def test_what_ranks_cannot_share_is_refused_with_the_numbers(shape, message):
    with pytest.raises(LutlabError, match=message):
        llama(**shape)


def test_an_encoder_is_refused():
    with pytest.raises(LutlabError, match="type bert cannot be shared"):
        share_of(family_named("bert"), {}, 2, 0, 2)
