"""Downloads of models with the real hub client against a hub on this machine; nothing leaves it."""

import hashlib
import json

import pytest
from tests.base.refusals import refused
from tests.hub_stand_in import COMMIT, CONVERTED, HubStandIn, dead_address, run_client
from tests.models.architectures import make
from tests.models.folders import flip, save

from lutlab.models.hub import check, is_repository

PINNED = "a" * 40

# Asks each repository in turn for what a run asks, and prints the list of what it got as JSON.
CLIENT = """
import json, sys
from lutlab.base.errors import LutlabError
from lutlab.models import hub
answers = []
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
            files = {path.name: path.stat().st_size for path in folder.iterdir()}
            answer = {"commit": hub.commit_of(name, revision), "text": text, "files": files}
            answer["bytes"] = [before, hub.download_bytes(name, revision)]
    except LutlabError as error:
        answer = str(error)
    answers.append(answer)
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
        save(model, root / name)
        (root / name / "README.md").write_text("not asked for")
        (root / name / "pytorch_model.bin").write_bytes(b"never asked for" * 1000)
    (root / "safetensors/merges.txt").write_text("#version: 0.2\n")
    (root / "pickled/model.safetensors").unlink()
    return root, model.lm_head.weight.double().sum().item()


def test_download_load_and_load_again_without_a_network(folders, tmp_path):
    """One pass: pinned, branch, converted by the bot, pickled only, unknown; then the hub is gone."""
    root, weights = folders
    good, pickled = root / "safetensors", root / "pickled"
    repositories = {"org/good": good, "org/converted": pickled, "org/pickled": pickled}
    repositories = {("models", name): folder for name, folder in repositories.items()}
    hub = HubStandIn(repositories, conversions={"org/converted": good})
    branches = ("org/good", "org/converted", "org/pickled", "org/none", "a b")
    names = [("org/good", PINNED), ("org/converted", PINNED), *((name, None) for name in branches)]
    with hub as url:
        answers, _ = ask(url, tmp_path, *(("download", *name) for name in names))
    pinned, converted, branch, converted_branch, *refusals = answers

    texts = {p.name: p.stat().st_size for p in good.iterdir() if p.suffix in (".json", ".txt")}
    files = texts | {"model.safetensors": (good / "model.safetensors").stat().st_size}
    sizes = [files["model.safetensors"], 0]  # the texts are there already
    assert pinned == {"commit": PINNED, "text": sorted(texts), "files": files, "bytes": sizes}
    assert branch["commit"] == COMMIT
    assert (converted["commit"], converted["files"]) == (CONVERTED, files)
    new = files["model.safetensors"] + files["merges.txt"]
    assert converted["bytes"] == [new, 0], "what the branch has alike is not fetched twice"
    assert converted_branch["commit"] == CONVERTED
    assert "holds no safetensors and no conversion by SFconvertbot" in refusals[0]
    assert "the hub has no org/none at main" in refusals[1]
    assert "'a b' is no repository of the hub" in refusals[2]
    assert not [r for r in hub.requests if "GET" in r and ("README" in r or ".bin" in r)]

    (*answers, moved), printed = ask(dead_address(), tmp_path, *(("load", *n) for n in names[:3]))
    marks = (f"hub:org/good@{PINNED}", f"hub:org/converted@{CONVERTED}")
    assert answers == [{"fingerprint": mark, "sum": weights} for mark in marks]
    assert "cannot reach the hub for org/good at main" in moved, "a branch may have moved"
    assert printed == ""


def test_a_damaged_file_of_the_cache_is_refused(folders, tmp_path):
    root, _ = folders
    with HubStandIn({("models", "org/good"): root / "safetensors"}) as url:
        ask(url, tmp_path, ("download", "org/good", PINNED))
    (snapshot,) = tmp_path.rglob(f"snapshots/{PINNED}")
    check(snapshot)
    for name in ("model.safetensors", "tokenizer.json"):
        blob = (snapshot / name).resolve()
        flip(blob, bit=2)
        refused(rf"{name} in the hub's cache is damaged .*delete it", check, snapshot)
        flip(blob, bit=2)
    large = snapshot / "model.safetensors"
    content = large.read_bytes()
    named = snapshot / hashlib.sha256(content).hexdigest()  # as the hub names large files
    large.unlink()
    large.symlink_to(named)
    named.write_bytes(content)
    check(snapshot)
    named.write_bytes(content[:-1])
    refused(r"model\.safetensors in the hub's cache is damaged", check, snapshot)


def test_a_conversion_by_anybody_else_is_not_used(folders, tmp_path):
    root, _ = folders
    repositories = {("models", "org/model"): root / "pickled"}
    conversions = {"org/model": root / "safetensors"}
    with HubStandIn(repositories, conversions=conversions, converter="somebody") as url:
        (answer,), _ = ask(url, tmp_path, ("download", "org/model", PINNED))
    assert "no conversion by SFconvertbot" in answer


def test_a_download_that_broke_is_an_error_and_can_be_repeated(folders, tmp_path):
    folder = folders[0] / "safetensors"
    answers = []
    for truncate in (True, False):
        with HubStandIn({("models", "org/good"): folder}, truncate=truncate) as url:
            answers += ask(url, tmp_path, ("download", "org/good", PINNED))[0]
    assert "the download of org/good" in answers[0]
    assert answers[0].endswith("run again")
    size = (folder / "model.safetensors").stat().st_size
    assert answers[1]["files"]["model.safetensors"] == size


@pytest.mark.parametrize("environment", [{}, {"HF_HUB_OFFLINE": "1"}], ids=["dead", "offline"])
def test_no_network(tmp_path, environment):
    (message,), _ = ask(dead_address(), tmp_path, ("download", "org/good", PINNED), **environment)
    assert f"cannot reach the hub for org/good at {PINNED}" in message
    assert "model=folder" in message


def test_a_hub_id_is_owner_slash_name_and_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_repository("facebook/opt-125m")
    assert not is_repository("opt-125m")
    assert not is_repository("../models/opt")
    (tmp_path / "facebook/opt-125m").mkdir(parents=True)
    assert not is_repository("facebook/opt-125m")
