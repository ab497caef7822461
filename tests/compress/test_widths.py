"""Which q and g each layer gets, from Python and from the command line, and what its record says."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.models.architectures import CONFIGS, config, make, token_ids
from tests.tiny_models import RUN, byte_tokenizer

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import Subject, Sublayer
from lutlab.compress.driver import quantize_model
from lutlab.compress.widths import layer_widths, widths
from lutlab.evaluators.model_size import ModelSize
from lutlab.models.families import kinds, linear_layers, weight_of
from lutlab.modules import QuantLinear
from lutlab.quantizers.rtn import RTN

KINDS = {
    f"b.{block}.{name}": kind
    for block in (0, 1)
    for name, kind in (("attn.q", "attention"), ("fc1", "feed_forward"))
}
ATTENTION = [Sublayer("attention", 3, 64)]


@pytest.mark.parametrize(("skip", "kept"), [
    (["*.fc1"], ["b.0.fc1", "b.1.fc1"]), (["b.0.*"], ["b.0.attn.q", "b.0.fc1"]),
    (["b.1.fc1", "b.0.attn.?"], ["b.0.attn.q", "b.1.fc1"]), (["*"], list(KINDS)), ([], []),
])  # fmt: skip
def test_skipped_layers_stay(skip, kept):
    chosen = widths(KINDS, 4, 128, ATTENTION, skip)
    assert [name for name, width in chosen.items() if width is None] == kept


@given(st.integers(1, 8), st.integers(1, 8), st.lists(st.sampled_from(list(KINDS)), unique=True))
def test_skip_goes_over_sublayer_over_model(q, own, skip):
    chosen = widths(KINDS, q, 32, [Sublayer("feed_forward", own, 16)], skip)
    assert list(chosen) == list(KINDS)
    for name, kind in KINDS.items():
        expected = (own, 16) if kind == "feed_forward" else (q, 32)
        assert chosen[name] == (None if name in skip else expected)


def test_layers_go_over_sublayers_and_under_skip():
    own = layer_widths({"b.0.*": (2, 16), "*.fc1": [8.0, -1]}, RTN())
    chosen = widths(KINDS, 4, 128, ATTENTION, ["b.1.fc1"], own)
    assert list(chosen.values()) == [(2, 16), (8, -1), (3, 64), None]


def test_layers_from_python():
    model = make("opt")
    lutlab.quantize(model, q=4, g=16, layers={"*.layers.0.*": (2, 20)}, skip=["*.0.fc2"])
    bits = {n: m.packed.bits for n, m in linear_layers(model) if isinstance(m, QuantLinear)}
    first, last = ({b for name, b in bits.items() if f".layers.{i}." in name} for i in (0, 1))
    assert (first, last) == ({2}, {4})
    assert "model.decoder.layers.0.fc2" not in bits


@pytest.mark.parametrize(("wrong", "cause"), [
    ({"layers": {"*.fc3": (4, 16)}}, r"layers pattern '\*\.fc3' fits no layer"),
    ({"layers": {"*": (4,)}}, "give two numbers, q and g"),
    ({"layers": {"*": (9, 16)}}, "q=9 is not a number of bits"),
    ({"layers": {"*": (4, 16)}, "budget": 4.0}, "budget chooses the widths of all layers"),
])  # fmt: skip
def test_wrong_layers_are_explained(wrong, cause):
    with pytest.raises(LutlabError, match=cause):
        lutlab.quantize(make("opt"), calibration=token_ids(), **wrong)


@pytest.mark.parametrize(("wrong", "cause"), [
    ({"sublayers": [Sublayer("atention", 3, 64)]}, "no sub-layers of kind 'atention': did you mean 'attention'"),
    ({"skip": ["*.fc1", "*.fc3"]}, r"'\*\.fc3' fits no layer; layers are named like b\.0\.attn\.q"),
])  # fmt: skip
def test_unknown_kind_and_pattern_are_refused(wrong, cause):
    with pytest.raises(LutlabError, match=cause):
        widths(KINDS, 4, 128, **wrong)


def size_of(model, stats):
    return ModelSize().measure(Subject(model, None, stats, None, 16, RUN)).values


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_of_several_widths(name):
    """Ragged groups of 20 in 32 and 48 channels; its statistics and its size are those of each layer."""
    model = make(name)
    names = list(kinds(model.config))
    chosen = widths(kinds(model.config), 4, -1, [Sublayer("attention", 2, 20)], [names[-1]])
    before = weight_of(dict(linear_layers(model))[names[-1]]).clone()
    stats = quantize_model(model, RTN(), chosen)
    assert [layer.name for layer in stats] == names
    for layer, (path, module) in zip(stats, linear_layers(model), strict=True):
        if chosen[path] is None:
            assert not isinstance(module, QuantLinear)
            assert torch.equal(weight_of(module), before.half().float())
            assert (layer.q, layer.g, layer.bits_stored) == (16, -1, 16 * before.numel())
            continue
        assert (module.packed.bits, module.packed.group_size) == (layer.q, layer.g) == chosen[path]
        groups = 1 if layer.g == -1 else -(-layer.in_features // 20)
        assert module.packed.scale.shape == (layer.out_features, groups)
        assert layer.bits_stored == module.packed.bits_stored
    assert model(token_ids()).logits.isfinite().all()
    bits = sum(layer.bits_stored for layer in stats)
    weights = sum(layer.out_features * layer.in_features for layer in stats)
    assert size_of(model, stats)["bits_per_weight"] == bits / weights


# ---- from the command line ----


@pytest.fixture
def arguments(tmp_path):
    folder = tmp_path / "model"
    make("opt").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return "model=folder", f"model.id={folder}", "evaluate=[model_size,weight_error]", "logger=none"


def test_command_line(command, arguments):
    own = ("sublayers.attention.q=3", "sublayers.attention.g=20", "skip=[*.1.fc2]", "q=4", "g=16")
    own += ("layers={*.layers.0.fc?: [2, 16]}",)
    assert command(*arguments, *own).code == 0
    records = list(command.records().values())
    assert len(records) == 2
    for record in records:
        assert record["status"] == "done"
        assert record["run"]["skip"] == ["*.1.fc2"]
        assert record["run"]["sublayers"] == [{"kind": "attention", "q": 3, "g": 20}]
        assert record["run"]["layers"] == [{"pattern": "*.layers.0.fc?", "q": 2, "g": 16}]
    model, sublayers = make("opt"), [Sublayer("attention", 3, 20)]
    layers = layer_widths({"*.layers.0.fc?": (2, 16)}, RTN())
    chosen = widths(kinds(config("opt")), 4, 16, sublayers, ["*.1.fc2"], layers)
    stats = quantize_model(model, RTN(), chosen)
    values = next(r["values"] for r in records if "bits_per_weight" in r["values"])
    assert values == size_of(model, stats)


@pytest.mark.parametrize(("mistake", "cause"), [
    ("skip=[*.fc3]", "skip pattern '*.fc3' fits no layer"), ("layers={*.fc1: [4]}", "give two numbers, q and g"),
    ("layers=4", "give patterns of layer names with [q, g]"), ("sublayers.atention.q=3", "atention"),
    ("sublayers.attention.q=9", "q=9 is not a number of bits"),
    ("sublayers.feed_forward.g=3", "g=3 is not a group size"),
])  # fmt: skip
def test_mistakes_are_explained(mistake, cause, command, arguments):
    outcome = command(*arguments, mistake)
    assert outcome.code != 0
    assert "Traceback" not in outcome.out + outcome.err
    assert cause in " ".join((outcome.out + outcome.err).split())
    assert len(outcome.err.splitlines()) <= 24
