"""Downloads of models with the real hub client against a hub on this machine; nothing leaves it."""

import hashlib
import json

import pytest
from tests.hub_stand_in import COMMIT, CONVERTED, HubStandIn, dead_address, run_client
from tests.models.architectures import make
from tests.tiny_models import byte_tokenizer

from lutlab.base.errors import LutlabError
from lutlab.models.hub import check, is_repository

PINNED = "a" * 40

# Asks each repository in turn for what a run asks, and prints what it got as JSON.
CLIENT = """
import json, sys
from lutlab.base.errors import LutlabError
from lutlab.models import hub
answers = {}
for action, name, revision in json.loads(sys.argv[1]):
    try:
        if action == "load":
            import torch
            from lutlab.models.load import fingerprint, load_model
            from lutlab.base.specs import ModelSpec
            spec = ModelSpec(name, "hub", name, revision)
            model = load_model(spec, torch.float32, "cpu", 0).model
            answer = {"fingerprint": fingerprint(spec), "sum": model.lm_head.weight.double().sum().item()}
        else:
            text = sorted(path.name for path in hub.download(name, revision, weights=False).iterdir())
            before = hub.download_bytes(name, revision)
            folder = hub.download(name, revision, weights=True)
            answer = {
                "commit": hub.commit_of(name, revision),
                "text": text,
                "bytes": [before, hub.download_bytes(name, revision)],
                "files": {path.name: path.stat().st_size for path in folder.iterdir()},
            }
    except LutlabError as error:
        answer = str(error)
    answers[f"{name}@{revision}"] = answer
print(json.dumps(answers))
"""


def ask(url, home, *wanted, **environment):
    """Answers of a process of its own, and what it printed to stderr."""
    done = run_client(CLIENT, url, home, json.dumps(wanted), **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model in safetensors, and what its repository looks like where it is pickled."""
    root = tmp_path_factory.mktemp("hub")
    model = make("opt")
    for name in ("safetensors", "pickled"):
        model.save_pretrained(root / name)
        byte_tokenizer().save_pretrained(root / name)
        (root / name / "README.md").write_text("not asked for")
        (root / name / "pytorch_model.bin").write_bytes(b"never asked for" * 1000)
    (root / "safetensors/merges.txt").write_text("#version: 0.2\n")
    (root / "pickled/model.safetensors").unlink()
    return root, model.lm_head.weight.double().sum().item()


def test_download_load_and_load_again_without_a_network(folders, tmp_path):
    """One pass: pinned, branch, converted by the bot, pickled only, unknown; then the hub is gone."""
    root, weights = folders
    good, pickled = root / "safetensors", root / "pickled"
    hub = HubStandIn(
        {
            ("models", f"org/{name}"): good if name == "good" else pickled
            for name in ("good", "converted", "pickled")
        },
        conversions={"org/converted": good},
    )
    pinned = [("download", "org/good", PINNED), ("download", "org/converted", PINNED)]
    others = [
        ("download", name, None)
        for name in ("org/good", "org/converted", "org/pickled", "org/none", "a b")
    ]
    with hub as url:
        answers, _ = ask(url, tmp_path, *pinned, *others)

    texts = {p.name: p.stat().st_size for p in good.iterdir() if p.suffix in (".json", ".txt")}
    files = texts | {"model.safetensors": (good / "model.safetensors").stat().st_size}
    pinned_answer = answers[f"org/good@{PINNED}"]
    assert pinned_answer["commit"] == PINNED
    assert pinned_answer["text"] == sorted(texts)
    assert pinned_answer["files"] == files
    assert pinned_answer["bytes"] == [files["model.safetensors"], 0], "the texts are there already"
    assert answers["org/good@None"]["commit"] == COMMIT

    converted = answers[f"org/converted@{PINNED}"]
    assert (converted["commit"], converted["files"]) == (CONVERTED, files)
    new = files["model.safetensors"] + files["merges.txt"]
    assert converted["bytes"] == [new, 0], "what the branch has alike is not fetched twice"
    assert answers["org/converted@None"]["commit"] == CONVERTED
    assert "holds no safetensors and no conversion by SFconvertbot" in answers["org/pickled@None"]
    assert "the hub has no org/none at main" in answers["org/none@None"]
    assert "'a b' is no repository of the hub" in answers["a b@None"]
    assert not [r for r in hub.requests if "GET" in r and ("README" in r or ".bin" in r)]

    again = [("load", name, PINNED) for name in ("org/good", "org/converted")]
    answers, printed = ask(dead_address(), tmp_path, *again, ("load", "org/good", None))
    assert answers[f"org/good@{PINNED}"] == {
        "fingerprint": f"hub:org/good@{PINNED}",
        "sum": weights,
    }
    conversion = {"fingerprint": f"hub:org/converted@{CONVERTED}", "sum": weights}
    assert answers[f"org/converted@{PINNED}"] == conversion
    assert "cannot reach the hub for org/good at main" in answers["org/good@None"], (
        "a branch may have moved"
    )
    assert printed == ""


def test_a_damaged_file_of_the_cache_is_refused(folders, tmp_path):
    root, _ = folders
    with HubStandIn({("models", "org/good"): root / "safetensors"}) as url:
        ask(url, tmp_path, ("download", "org/good", PINNED))
    (snapshot,) = tmp_path.rglob(f"snapshots/{PINNED}")
    check(snapshot)
    for name in ("model.safetensors", "tokenizer.json"):
        blob = (snapshot / name).resolve()
        whole = blob.read_bytes()
        blob.write_bytes(whole[:-1] + bytes([whole[-1] ^ 4]))
        with pytest.raises(LutlabError, match=rf"{name} in the hub's cache is damaged .*delete it"):
            check(snapshot)
        blob.write_bytes(whole)
    large = snapshot / "model.safetensors"
    content = large.read_bytes()
    named = snapshot / hashlib.sha256(content).hexdigest()  # as the hub names large files
    large.unlink()
    large.symlink_to(named)
    named.write_bytes(content)
    check(snapshot)
    named.write_bytes(content[:-1])
    with pytest.raises(LutlabError, match=r"model\.safetensors in the hub's cache is damaged"):
        check(snapshot)


def test_a_conversion_by_anybody_else_is_not_used(folders, tmp_path):
    root, _ = folders
    repositories = {("models", "org/model"): root / "pickled"}
    conversions = {"org/model": root / "safetensors"}
    with HubStandIn(repositories, conversions=conversions, converter="somebody") as url:
        answers, _ = ask(url, tmp_path, ("download", "org/model", PINNED))
    assert "no conversion by SFconvertbot" in answers[f"org/model@{PINNED}"]


def test_a_download_that_broke_is_an_error_and_can_be_repeated(folders, tmp_path):
    root, _ = folders
    repositories = {("models", "org/good"): root / "safetensors"}
    wanted = ("download", "org/good", PINNED)
    with HubStandIn(repositories, truncate=True) as url:
        answers, _ = ask(url, tmp_path, wanted)
    assert "the download of org/good" in answers[f"org/good@{PINNED}"]
    assert answers[f"org/good@{PINNED}"].endswith("run again")
    with HubStandIn(repositories) as url:
        answers, _ = ask(url, tmp_path, wanted)
    whole = (root / "safetensors/model.safetensors").stat().st_size
    assert answers[f"org/good@{PINNED}"]["files"]["model.safetensors"] == whole


@pytest.mark.parametrize("environment", [{}, {"HF_HUB_OFFLINE": "1"}], ids=["dead", "offline"])
def test_no_network(tmp_path, environment):
    answers, _ = ask(dead_address(), tmp_path, ("download", "org/good", PINNED), **environment)
    message = answers[f"org/good@{PINNED}"]
    assert f"cannot reach the hub for org/good at {PINNED}" in message
    assert "model=folder" in message


def test_a_hub_id_is_owner_slash_name_and_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_repository("facebook/opt-125m")
    assert not is_repository("opt-125m")
    assert not is_repository("../models/opt")
    (tmp_path / "facebook/opt-125m").mkdir(parents=True)
    assert not is_repository("facebook/opt-125m")
