"""Loading: every source gives the model it says, every damage is an error that names cause and cure."""

import json
import shutil

import pytest
import torch
from tests.models.architectures import CONFIGS, config, make, token_ids
from tests.models.folders import change_config, loaded, spec
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import TextSpec
from lutlab.data import load_text
from lutlab.data.masking import masked_stream
from lutlab.evaluators.masked_lm import masked_predictions
from lutlab.models import load


def same(model, other):
    pairs = zip(model.state_dict().items(), other.state_dict().items(), strict=True)
    return all(n == m and torch.equal(a, b) for (n, a), (m, b) in pairs)


# ---- sources ----


def test_models_ship_with_lutlab():
    assert load.embedded_names()


@pytest.mark.parametrize("name", [n for n in load.embedded_names() if not n.startswith("bert")])
def test_embedded(name):
    found = loaded(name, "embedded")
    text = "Return the number of items in a list. If the list is empty, the result is zero. " * 8
    chance = found.model.config.vocab_size
    assert lutlab.perplexity(found.model, found.tokenizer, text, seqlen=64) < chance / 10
    assert max(found.tokenizer(text).input_ids) < chance


def test_embedded_encoder_names_masked_tokens_better_than_their_frequencies_do():
    """The card says what frequencies alone give; the first windows of the held-out topics suffice to be below it."""
    name = "bert-embedded-s"
    found = loaded(name, "embedded")
    unigram = json.loads((load.EMBEDDED / "training.json").read_text())["models"][name][
        "unigram_loss"
    ]
    text = load_text(TextSpec("topics", "embedded", limit=30))
    windows = masked_stream(text, found.tokenizer, 128, seed=1)
    tokens, nll, *_ = zip(*masked_predictions(found.model, found.model, windows), strict=True)
    assert sum(nll) / sum(tokens) < unigram["topics"] - 0.5
    assert (
        found.model.config.vocab_size == len(found.tokenizer) == found.tokenizer.mask_token_id + 1
    )


@pytest.mark.parametrize("damage", ["flip", "gone", "no sums"])
def test_a_damaged_embedded_model_is_refused(damage, tmp_path, monkeypatch):
    name = "opt-embedded-s"
    folder = shutil.copytree(load.EMBEDDED / name, tmp_path / name)
    monkeypatch.setattr(load, "EMBEDDED", tmp_path)
    model = folder / "model.safetensors"
    if damage == "flip":
        data = model.read_bytes()
        model.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    else:
        (model if damage == "gone" else folder / "SHA256SUMS").unlink()
    for read in (loaded, lambda *embedded: load.fingerprint(spec(*embedded))):
        with pytest.raises(LutlabError, match=f"{name}.*a model that ships .* reinstall lutlab"):
            read(name, "embedded")


def test_unknown_embedded_name_suggests():
    name = load.embedded_names()[0]
    with pytest.raises(LutlabError, match=f"'{name}x': did you mean '{name}'"):
        loaded(f"{name}x", "embedded")


@pytest.mark.parametrize("name", CONFIGS)
def test_folder(name, tmp_path):
    model = make(name)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    found = loaded(tmp_path)
    assert same(found.model, model)
    assert not found.model.training
    assert torch.equal(found.model(token_ids()).logits, model(token_ids()).logits)
    assert found.tokenizer("the end").input_ids == byte_tokenizer()("the end").input_ids


def test_folder_with_shards(folder):
    model = make("opt")
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert same(loaded(folder).model, model)


def test_home_is_expanded(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert load.folder_of(spec("~/model")) == folder


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dtype(saved, dtype):
    model = loaded(saved, dtype=dtype).model
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_loading_prints_nothing(folder, capfd):
    (folder / "README.md").write_text("a model")
    loaded(folder)
    loaded(folder, "synthetic")
    change_config(folder, num_hidden_layers=3)
    with pytest.raises(LutlabError):
        loaded(folder)
    assert capfd.readouterr() == ("", "")


def test_progress_bars_and_reports_are_given_back(saved):
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging

    def state():
        bars = logging.is_progress_bar_enabled(), are_progress_bars_disabled()
        return logging.get_verbosity(), *bars

    before = state()
    loaded(saved)
    with pytest.raises(LutlabError):
        loaded(saved, "synthetic", layers=99)
    assert state() == before == (logging.WARNING, True, False)


# ---- synthetic ----


@pytest.fixture
def only_config(tmp_path):
    config("opt").save_pretrained(tmp_path)
    return tmp_path


def test_synthetic_needs_a_config_only(only_config):
    found = loaded(only_config, "synthetic")
    assert found.tokenizer is None
    assert found.model.num_parameters() == make("opt").num_parameters()
    assert not found.model.training


def test_synthetic_brings_a_tokenizer_that_is_there(saved):
    assert loaded(saved, "synthetic").tokenizer is not None


def test_synthetic_weights_follow_the_seed_alone(only_config):
    torch.manual_seed(5)
    first = loaded(only_config, "synthetic", seed=1).model
    drawn = torch.rand(3)
    second = loaded(only_config, "synthetic", seed=1).model
    assert same(first, second)
    assert not same(first, loaded(only_config, "synthetic", seed=2).model)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3)), "the caller's random numbers were used up"


@pytest.mark.parametrize("name", CONFIGS)
def test_synthetic_is_cut_to_its_first_layers(name, tmp_path):
    config(name).save_pretrained(tmp_path)
    found = loaded(tmp_path, "synthetic", layers=1, dtype=torch.float16).model
    assert found.dtype == torch.float16
    assert len(found.get_submodule(load.family_of(found.config).blocks)) == 1
    assert found(token_ids()).logits.isfinite().all()


@pytest.mark.parametrize("layers", [0, -1, 3])
def test_synthetic_refuses_layers_the_model_lacks(only_config, layers):
    with pytest.raises(LutlabError, match=f"model.layers={layers} of a model of 2 layers: give 1"):
        loaded(only_config, "synthetic", layers=layers)


def test_synthetic_of_an_embedded_name():
    name = load.embedded_names()[0]
    assert not same(loaded(name, "synthetic").model, loaded(name, "embedded").model)


# ---- fingerprint ----


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_fingerprint_is_that_of_the_content(saved, folder):
    before = load.fingerprint(spec(saved))
    (folder / "README.md").write_text("a model")
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    (folder / "model.safetensors").touch()
    assert load.fingerprint(spec(folder)) == before


@pytest.mark.parametrize("at", [-1, -5000, 200])
def test_fingerprint_changes_with_every_byte_of_the_weights(folder, at):
    before = load.fingerprint(spec(folder))
    flip(folder / "model.safetensors", at)
    assert load.fingerprint(spec(folder)) != before


def test_fingerprint_changes_with_every_shard(folder):
    (folder / "model.safetensors").unlink()
    make("opt").save_pretrained(folder, max_shard_size="20KB")
    seen = {load.fingerprint(spec(folder))}
    shards = sorted(folder.glob("model-*.safetensors"))
    for shard in shards:
        flip(shard, -1)
        seen.add(load.fingerprint(spec(folder)))
    assert len(seen) == len(shards) + 1


@pytest.mark.parametrize("source", ["folder", "synthetic"])
def test_fingerprint_changes_with_config_and_tokenizer(folder, source):
    seen = {load.fingerprint(spec(folder, source))}
    names = (
        "config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
    )  # fmt: skip
    for name in names:
        path = folder / name
        path.write_text((path.read_text() if path.exists() else "{}") + "\n")
        seen.add(load.fingerprint(spec(folder, source)))
    assert len(seen) == len(names) + 1


def test_fingerprint_of_a_synthetic_model_knows_its_layers_and_no_weights(folder):
    before = load.fingerprint(spec(folder, "synthetic"))
    assert load.fingerprint(spec(folder, "synthetic", layers=1)) != before
    assert load.fingerprint(spec(folder)) != before
    (folder / "model.safetensors").unlink()
    assert load.fingerprint(spec(folder, "synthetic")) == before
