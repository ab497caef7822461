"""A row is read from a composed configuration, whoever wrote it: the line, a preset, an artifact."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from lutlab.base import sources
from lutlab.base.errors import Mistakes
from lutlab.base.fields import keys_of
from lutlab.base.specs import ModelSpec
from lutlab.experiment.row.row import Row, register_choices, row_keys


def row(**given) -> Row:
    """As presets make it, which no line is checked for."""
    register_choices()
    with initialize_config_dir(str(sources.folder("conf")), version_base="1.3"):
        config = compose("config", ["device=cpu"])
    OmegaConf.set_struct(config, False)
    return Row.of(OmegaConf.merge(config, given))


def test_a_key_that_does_not_exist_is_named_with_the_nearest() -> None:
    with pytest.raises(Mistakes, match=r"no key 'model\.nmae': did you mean 'model\.name'"):
        row(model={"nmae": "x"})


def test_all_that_presets_set_wrongly_is_said_at_once() -> None:
    with pytest.raises(Mistakes) as caught:
        row(q="three", threads=0, skip="fc", method={"variant": [1]}, data={"source": "moon"})
    source = "unknown data.source 'moon': known: embedded, folder, hub"
    names = {line.partition("=")[0] for line in caught.value.said}
    assert names == {"q", "threads", "skip", "method.variant", source}


def test_values_have_the_types_of_their_fields() -> None:
    typed = row(q=3.0, stream=1, name=7, skip=["a"], budget=3, results="there", knobs={"luts": 4})
    assert (typed.q, type(typed.q), typed.stream, typed.name) == (3, int, True, "7")
    assert (typed.skip, typed.budget, typed.results) == (("a",), 3.0, Path("there"))
    assert typed.all_knobs == (("luts", 4),)
    assert row(mu=4).all_knobs == (("mu", 4),)


def test_a_field_of_a_spec_is_a_key() -> None:
    """As docs/architecture.md says of model.task: nothing else names it on its way to the command line."""
    (task,) = (key for key in keys_of(ModelSpec, "model.") if key.name == "model.task")
    assert row_keys()["model.task"] == task
    assert task.values == ("sequence_classification",)
    assert task.about.startswith("sequence_classification: a causal model")
