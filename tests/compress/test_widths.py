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
    "b.0.attn.q": "attention",
    "b.0.fc1": "feed_forward",
    "b.1.attn.q": "attention",
    "b.1.fc1": "feed_forward",
}


def test_a_model_has_one_width():
    assert widths(KINDS, 4, 128) == dict.fromkeys(KINDS, (4, 128))


def test_a_kind_of_sublayer_has_its_own():
    found = widths(KINDS, 4, 128, [Sublayer("attention", 3, 64)])
    assert list(found.values()) == [(3, 64), (4, 128), (3, 64), (4, 128)]
    assert list(found) == list(KINDS)


@pytest.mark.parametrize(
    ("skip", "kept"),
    [
        (["*.fc1"], ["b.0.fc1", "b.1.fc1"]),
        (["b.0.*"], ["b.0.attn.q", "b.0.fc1"]),
        (["b.1.fc1", "b.0.attn.?"], ["b.0.attn.q", "b.1.fc1"]),
        (["*"], list(KINDS)),
        ([], []),
    ],
)
def test_skipped_layers_stay(skip, kept):
    found = widths(KINDS, 4, 128, [Sublayer("attention", 3, 64)], skip)
    assert [name for name, width in found.items() if width is None] == kept


@given(
    q=st.integers(1, 8),
    own=st.integers(1, 8),
    skip=st.lists(st.sampled_from(list(KINDS)), unique=True),
)
def test_skip_goes_over_sublayer_over_model(q, own, skip):
    found = widths(KINDS, q, 32, [Sublayer("feed_forward", own, 16)], skip)
    for name, kind in KINDS.items():
        expected = (own, 16) if kind == "feed_forward" else (q, 32)
        assert found[name] == (None if name in skip else expected)


def test_layers_go_over_sublayers_and_under_skip():
    own = layer_widths({"b.0.*": (2, 16), "*.fc1": [8.0, -1]}, RTN())
    found = widths(KINDS, 4, 128, [Sublayer("attention", 3, 64)], ["b.1.fc1"], own)
    assert list(found.values()) == [(2, 16), (8, -1), (3, 64), None]


def test_layers_from_python():
    model = make("opt")
    lutlab.quantize(model, q=4, g=16, layers={"*.layers.0.*": (2, 20)}, skip=["*.0.fc2"])
    found = {n: m.packed.bits for n, m in linear_layers(model) if isinstance(m, QuantLinear)}
    assert "model.decoder.layers.0.fc2" not in found
    assert {bits for name, bits in found.items() if ".layers.0." in name} == {2}
    assert {bits for name, bits in found.items() if ".layers.1." in name} == {4}


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ({"layers": {"*.fc3": (4, 16)}}, r"layers pattern '\*\.fc3' fits no layer"),
        ({"layers": {"*": (4,)}}, "give two numbers, q and g"),
        ({"layers": {"*": (9, 16)}}, "q=9 is not a number of bits"),
        ({"layers": {"*": (4, 16)}, "budget": 4.0}, "budget chooses the widths of all layers"),
    ],
)
def test_wrong_layers_are_explained(wrong, cause):
    with pytest.raises(LutlabError, match=cause):
        lutlab.quantize(make("opt"), calibration=token_ids(), **wrong)


def test_unknown_kind_and_pattern_are_refused():
    with pytest.raises(
        LutlabError, match="no sub-layers of kind 'atention': did you mean 'attention'"
    ):
        widths(KINDS, 4, 128, [Sublayer("atention", 3, 64)])
    with pytest.raises(
        LutlabError, match=r"'\*\.fc3' fits no layer; layers are named like b\.0\.attn\.q"
    ):
        widths(KINDS, 4, 128, skip=["*.fc1", "*.fc3"])


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
    size = ModelSize().measure(Subject(model, None, stats, None, 16, RUN)).values
    weights = sum(layer.out_features * layer.in_features for layer in stats)
    assert size["bits_per_weight"] == sum(layer.bits_stored for layer in stats) / weights


# ---- from the command line ----


@pytest.fixture
def arguments(tmp_path):
    make("opt").save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    return (
        "model=folder",
        f"model.id={tmp_path / 'model'}",
        "evaluate=[model_size,weight_error]",
        "logger=none",
    )


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
    model = make("opt")
    layers = layer_widths({"*.layers.0.fc?": (2, 16)}, RTN())
    chosen = widths(
        kinds(config("opt")), 4, 16, [Sublayer("attention", 3, 20)], ["*.1.fc2"], layers
    )
    stats = quantize_model(model, RTN(), chosen)
    size = ModelSize().measure(Subject(model, None, stats, None, 16, RUN)).values
    found = next(r["values"] for r in records if "bits_per_weight" in r["values"])
    assert found == size


@pytest.mark.parametrize(
    ("mistake", "cause"),
    [
        ("skip=[*.fc3]", "skip pattern '*.fc3' fits no layer"),
        ("layers={*.fc1: [4]}", "give two numbers, q and g"),
        ("layers=4", "give patterns of layer names with [q, g]"),
        ("sublayers.atention.q=3", "atention"),
        ("sublayers.attention.q=9", "q=9 is not a number of bits"),
        ("sublayers.feed_forward.g=3", "g=3 is not a group size"),
    ],
)
def test_mistakes_are_explained(mistake, cause, command, arguments):
    outcome = command(*arguments, mistake)
    assert outcome.code != 0
    assert "Traceback" not in outcome.out + outcome.err
    assert cause in " ".join((outcome.out + outcome.err).split())
    assert len(outcome.err.splitlines()) <= 24
