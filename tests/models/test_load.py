"""Loading: every source gives the model it says, every damage is an error that names cause and cure."""

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.architectures import CONFIGS, config, make, token_ids
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab.data import load_text
from lutlab.data.masking import masked_stream
from lutlab.errors import LutlabError
from lutlab.evaluators.masked_lm import masked_predictions
from lutlab.models import load
from lutlab.models.files import weight_files
from lutlab.specs import ModelSpec, TextSpec


def spec(folder, source="folder", **fields):
    return ModelSpec("model", source, str(folder), **fields)


def loaded(folder, source="folder", seed=0, dtype=torch.float32, **fields):
    return load.load_model(spec(folder, source, **fields), dtype, "cpu", seed)


def same(model, other):
    pairs = zip(model.state_dict().items(), other.state_dict().items(), strict=True)
    return all(n == m and torch.equal(a, b) for (n, a), (m, b) in pairs)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    make("opt").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of a good model, to be damaged."""
    return shutil.copytree(saved, tmp_path / "model")


def change_config(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_weight(folder, name, change):
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = change(tensors[name])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


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
    results = masked_predictions(found.model, found.model, windows)
    loss = sum(one.nll for one in results) / sum(one.tokens for one in results)
    assert loss < unigram["topics"] - 0.5
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


# ---- damage ----


def refused(folder, message, **fields):
    with pytest.raises(LutlabError, match=message) as caught:
        loaded(folder, **fields)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("source", ["folder", "synthetic"])
def test_missing_folder(tmp_path, source):
    refused(tmp_path / "absent", r"no model in folder .*expected config\.json", source=source)


def test_no_config(folder):
    (folder / "config.json").unlink()
    refused(folder, r"no model in folder .*expected config\.json")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"model_type": 3}', ""])
def test_damaged_config(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(LutlabError, match=r"cannot read .*config\.json|no family of models '3'"):
        loaded(folder)


def test_only_pickled_weights_are_never_read(folder):
    (folder / "model.safetensors").unlink()
    torch.save(make("opt").state_dict(), folder / "pytorch_model.bin")
    message = r"lacks model\.safetensors: lutlab reads safetensors only, never pickled.*convert"
    refused(folder, message)
    with pytest.raises(LutlabError, match=message):
        load.fingerprint(spec(folder))


def test_missing_shard(folder):
    (folder / "model.safetensors").unlink()
    make("opt").save_pretrained(folder, max_shard_size="20KB")
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    refused(folder, f"lacks {shard.name}: .*fetch the missing shards")


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "[" * 100_000]
)
def test_damaged_index(folder, content):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    refused(folder, r"index\.json is damaged .*fetch it again")


@pytest.mark.parametrize("name", ["../{}/model.safetensors", "{}/model.safetensors", "../x"])
def test_an_index_names_files_of_its_folder_only(name, folder):
    elsewhere = shutil.copytree(folder, folder.with_name("elsewhere"))
    (folder / "model.safetensors").unlink()
    index, named = folder / "model.safetensors.index.json", name.format(elsewhere)
    index.write_text(json.dumps({"weight_map": {"x": named}}))
    refused(folder, r"index\.json names .*, which is not in its folder.*put a link")
    index.write_text(json.dumps({"weight_map": {"x": "link.safetensors"}}))
    (folder / "link.safetensors").symlink_to(elsewhere / "model.safetensors")
    assert weight_files(folder)[0].resolve() == elsewhere / "model.safetensors"


@pytest.mark.parametrize("kept", [0, 4, 50, 0.5, -1])
def test_truncated_weights(folder, kept):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept) if kept == 0.5 else kept])
    refused(folder, "cannot load the weights .*truncated: fetch it again")


def test_weights_missing_for_the_config(folder):
    change_config(folder, num_hidden_layers=3)
    refused(folder, r"lacks 16 weights .*first model\.decoder\.layers\.2\..*random weights")


def test_weights_without_a_place_in_the_config(folder):
    change_config(folder, num_hidden_layers=1)
    refused(folder, r"holds 8 weights of decoder blocks .*no place for.*num_hidden_layers")


def test_weights_of_other_shapes(folder):
    change_config(folder, ffn_dim=64)
    refused(folder, r"lacks 6 weights .*fc1\.bias \(the file holds \[48\] instead of \[64\]\)")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name", ["model.decoder.layers.1.fc2.weight", "model.decoder.final_layer_norm.bias"]
)
def test_weights_that_are_no_numbers(folder, name, bad):
    change_weight(
        folder,
        name,
        lambda weight: weight.flatten().index_fill(0, torch.tensor(7), bad).view_as(weight),
    )
    refused(folder, f"weight {name} holds NaN or infinite values.*fetch it again")


def test_weights_beyond_half_precision(folder):
    change_weight(folder, "model.decoder.layers.0.fc1.weight", lambda weight: weight * 1e6)
    loaded(folder)
    refused(folder, "holds NaN or infinite values.*half precision", dtype=torch.float16)


@pytest.mark.parametrize("source", ["folder", "synthetic"])
@pytest.mark.parametrize("architecture", ["t5", "bloom", "nosuch"])
def test_unknown_architecture(folder, architecture, source):
    (folder / "config.json").write_text(json.dumps({"model_type": architecture}))
    with pytest.raises(
        LutlabError, match=f"no family of models '{architecture}'.*known: bert, glm, gpt2, gpt_neo"
    ):
        loaded(folder, source)


def test_model_quantized_already(folder):
    change_config(folder, quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 32})
    refused(folder, "quantized already")


def test_no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    refused(folder, r"no tokenizer in .*expected one of tokenizer\.json")


@pytest.mark.parametrize("content", ["{", "{}"])
def test_damaged_tokenizer(folder, content):
    (folder / "tokenizer.json").write_text(content)
    refused(folder, "cannot read the tokenizer .*fetch its files again")


@pytest.mark.parametrize("architecture", ["opt", "mine"])
def test_code_of_a_repository_is_never_run(folder, architecture):
    """With a known model_type the built-in class is used, with an unknown one the model is refused."""
    code = f"open({str(folder / 'ran')!r}, 'w')\nclass Config: pass\nclass Model: pass\nclass Tokenizer: pass\n"
    (folder / "custom.py").write_text(code)
    classes = {"AutoConfig": "custom.Config", "AutoModelForCausalLM": "custom.Model"}
    change_config(folder, model_type=architecture, auto_map=classes)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"auto_map": {"AutoTokenizer": ["custom.Tokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if architecture == "opt":
        assert type(loaded(folder).model).__name__ == "OPTForCausalLM"
    else:
        with pytest.raises(LutlabError, match="'mine'"):
            loaded(folder)
    assert not (folder / "ran").exists()


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
