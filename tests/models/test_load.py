"""Loading: every source gives the model it says, every damage is an error that names cause and cure."""

import json
import shutil

import pytest
import torch
from huggingface_hub.utils import are_progress_bars_disabled
from tests.base.refusals import refused
from tests.models.architectures import CONFIGS, config, logits, make, token_ids
from tests.models.folders import change_config, flip, loaded, save, spec
from tests.tiny_models import byte_tokenizer
from transformers.utils import logging

import lutlab
from lutlab.base.specs import TextSpec
from lutlab.data import load_text
from lutlab.data.masking import masked_stream
from lutlab.evaluators.masked_lm import masked_predictions
from lutlab.models import load
from lutlab.models.families import decoder_blocks

NAMES = load.embedded_names()


def same(model, other):
    pairs = zip(model.state_dict().items(), other.state_dict().items(), strict=True)
    return all(n == m and torch.equal(a, b) for (n, a), (m, b) in pairs)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("bert")])
def test_embedded(name):
    text = "Return the number of items in a list. If the list is empty, the result is zero. " * 8
    model, tokenizer = loaded(name, "embedded").model, loaded(name, "embedded").tokenizer
    chance = model.config.vocab_size
    assert lutlab.perplexity(model, tokenizer, text, seqlen=64) < chance / 10
    assert max(tokenizer(text).input_ids) < chance


def test_embedded_encoder_names_masked_tokens_better_than_their_frequencies_do():
    """The card says what frequencies alone give; the first windows of the held-out topics suffice to be below it."""
    name = "bert-embedded-s"
    model, tokenizer = loaded(name, "embedded").model, loaded(name, "embedded").tokenizer
    card = json.loads((load.EMBEDDED / "training.json").read_text())["models"][name]
    text = load_text(TextSpec("topics", "embedded", limit=30))
    windows = masked_stream(text, tokenizer, 128, seed=1)
    tokens, nll, *_ = zip(*masked_predictions(model, model, windows), strict=True)
    assert sum(nll) / sum(tokens) < card["unigram_loss"]["topics"] - 0.5
    assert model.config.vocab_size == len(tokenizer) == tokenizer.mask_token_id + 1


@pytest.mark.parametrize("damage", ["flip", "gone", "no sums"])
def test_a_damaged_embedded_model_is_refused(damage, tmp_path, monkeypatch):
    name = "opt-embedded-s"
    folder = shutil.copytree(load.EMBEDDED / name, tmp_path / name)
    monkeypatch.setattr(load, "EMBEDDED", tmp_path)
    model = folder / "model.safetensors"
    if damage == "flip":
        flip(model)
    else:
        (model if damage == "gone" else folder / "SHA256SUMS").unlink()
    message = f"{name}.*a model that ships .* reinstall lutlab"
    refused(message, loaded, name, "embedded")
    refused(message, load.fingerprint, spec(name, "embedded"))


def test_unknown_embedded_name_suggests():
    refused(f"'{NAMES[0]}x': did you mean '{NAMES[0]}'", loaded, f"{NAMES[0]}x", "embedded")


@pytest.mark.parametrize("name", CONFIGS)
def test_folder(name, tmp_path):
    model = make(name)
    back = loaded(save(model, tmp_path))
    assert same(back.model, model)
    assert not back.model.training
    assert torch.equal(logits(back.model), logits(model))
    assert back.tokenizer("the end").input_ids == byte_tokenizer()("the end").input_ids


def test_home_is_expanded(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert load.folder_of(spec("~/model")) == folder


def test_loading_prints_nothing(folder, capfd):
    (folder / "README.md").write_text("a model")
    loaded(folder)
    loaded(folder, "synthetic")
    change_config(folder, num_hidden_layers=3)
    refused("lacks", loaded, folder)
    assert capfd.readouterr() == ("", "")


def test_progress_bars_and_reports_are_given_back(saved):
    def state():
        bars = logging.is_progress_bar_enabled(), are_progress_bars_disabled()
        return logging.get_verbosity(), *bars

    before = state()
    loaded(saved)
    refused("99", loaded, saved, "synthetic", layers=99)
    assert state() == before == (logging.WARNING, True, False)


@pytest.fixture
def only_config(tmp_path):
    config("opt").save_pretrained(tmp_path)
    return tmp_path


def test_synthetic_needs_a_config_only(only_config, saved):
    synthetic = loaded(only_config, "synthetic")
    assert synthetic.tokenizer is None
    assert synthetic.model.num_parameters() == make("opt").num_parameters()
    assert not synthetic.model.training
    assert loaded(saved, "synthetic").tokenizer is not None, "one that is there is brought"


def test_synthetic_weights_follow_the_seed_alone(only_config):
    torch.manual_seed(5)
    first = loaded(only_config, "synthetic", seed=1).model
    drawn = torch.rand(3)
    assert same(first, loaded(only_config, "synthetic", seed=1).model)
    assert not same(first, loaded(only_config, "synthetic", seed=2).model)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3)), "the caller's random numbers were used up"


@pytest.mark.parametrize("name", CONFIGS)
def test_synthetic_is_cut_to_its_first_layers(name, tmp_path):
    config(name).save_pretrained(tmp_path)
    model = loaded(tmp_path, "synthetic", layers=1, dtype=torch.float16).model
    assert model.dtype == torch.float16
    assert len(decoder_blocks(model)) == 1
    assert model(token_ids()).logits.isfinite().all()


@pytest.mark.parametrize("layers", [0, -1, 3])
def test_synthetic_refuses_layers_the_model_lacks(only_config, layers):
    refused(f"={layers} of a model of 2 layers", loaded, only_config, "synthetic", layers=layers)


def test_synthetic_of_an_embedded_name():
    assert not same(loaded(NAMES[0], "synthetic").model, loaded(NAMES[0], "embedded").model)


def fingerprint(*model, **fields):
    return load.fingerprint(spec(*model, **fields))


def test_fingerprint_is_that_of_the_content(saved, folder):
    (folder / "README.md").write_text("a model")
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    (folder / "model.safetensors").touch()
    assert fingerprint(folder) == fingerprint(saved)


@pytest.mark.parametrize("at", [-1, -5000, 200])
def test_fingerprint_changes_with_every_byte_of_the_weights(saved, folder, at):
    flip(folder / "model.safetensors", at)
    assert fingerprint(folder) != fingerprint(saved)


def test_fingerprint_changes_with_every_shard(folder):
    (folder / "model.safetensors").unlink()
    make("opt").save_pretrained(folder, max_shard_size="20KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    seen = {fingerprint(folder)}
    for shard in shards:
        flip(shard)
        seen.add(fingerprint(folder))
    assert len(seen) == len(shards) + 1


@pytest.mark.parametrize("source", ["folder", "synthetic"])
def test_fingerprint_changes_with_config_and_tokenizer(folder, source):
    seen = {fingerprint(folder, source)}
    names = (
        "config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
    )  # fmt: skip
    for name in names:
        path = folder / name
        path.write_text((path.read_text() if path.exists() else "{}") + "\n")
        seen.add(fingerprint(folder, source))
    assert len(seen) == len(names) + 1


def test_fingerprint_of_a_synthetic_model_knows_its_layers_and_no_weights(folder):
    before = fingerprint(folder, "synthetic")
    assert fingerprint(folder, "synthetic", layers=1) != before
    assert fingerprint(folder) != before
    (folder / "model.safetensors").unlink()
    assert fingerprint(folder, "synthetic") == before
