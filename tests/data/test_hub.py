"""The hub's client end to end, in processes of their own, against a stand-in that serves made-up files."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest
from tests.hub_stand_in import COMMIT, HubStandIn, dead_address, run_client

LOAD = """
import json, sys
from lutlab.data import load_text
from lutlab.base.errors import LutlabError
from lutlab.base.specs import TextSpec
found = {}
for name in sys.argv[1:]:
    try:
        text = load_text(TextSpec(name, "hub"))
        found[name] = [len(text.rows), list(text.rows[:3]), text.origin]
    except LutlabError as error:
        found[name] = str(error)
print(json.dumps(found))
"""
WIKITEXT = ["", " = A = \n", " some text \n"]
CARD = """---
configs:
- config_name: wikitext-2-raw-v1
  data_files:
  - split: test
    path: wikitext-2-raw-v1/test-*
---
"""


def parquet(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


@pytest.fixture
def repositories(tmp_path):
    """Folder of each data set's repository, with the files and columns that the real ones have."""
    root = tmp_path / "repositories"
    ids = (
        "Salesforce/wikitext",
        "FALcon6/ptb_text_only",
        "allenai/c4",
        "EleutherAI/lambada_openai",
        "cimec/lambada",
    )
    wikitext, ptb, c4, openai, cimec = folders = [root / name for name in ids]
    parquet(wikitext / "wikitext-2-raw-v1" / "test-00000-of-00001.parquet", text=WIKITEXT)
    (wikitext / "README.md").write_text(CARD)
    for split in ("validation", "test"):
        parquet(
            ptb / "penn_treebank" / split / "0000.parquet", sentence=[f"the {split} <unk>", "N"]
        )
    (c4 / "en").mkdir(parents=True)
    documents = "".join(json.dumps({"text": f"d{i}", "url": "u"}) + "\n" for i in range(1200))
    (c4 / "en" / "c4-validation.00000-of-00008.json.gz").write_bytes(
        gzip.compress(documents.encode())
    )
    (openai / "data").mkdir(parents=True)
    (openai / "data" / "lambada_test.jsonl").write_text('{"text": "One\\n\\ntwo three"}\n')
    parquet(cimec / "plain_text" / "test-00000-of-00001.parquet", text=["one two"], domain=["x"])
    return {("datasets", name): folder for name, folder in zip(ids, folders, strict=True)}


def load(url, home, *names, **environment):
    done = run_client(LOAD, url, home, *names, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_data_set_loads_with_its_commit_and_again_from_the_cache(repositories, tmp_path):
    names = ("wikitext2", "ptb", "ptb-new", "c4-new", "lambada", "lambada-standard")
    hub = HubStandIn(repositories)
    with hub as url:
        found = load(url, tmp_path / "home", *names)
    pinned = "b08601e04326c79dfdd32d625aee71d232d685c3"
    assert found["wikitext2"] == [
        3, WIKITEXT, f"hub: Salesforce/wikitext@{pinned}/wikitext-2-raw-v1/test-00000-of-00001.parquet",
    ]  # fmt: skip
    assert found["ptb"][:2] == [2, ["the validation <unk>", "N"]]
    assert (
        found["ptb"][2]
        == f"hub: FALcon6/ptb_text_only@{COMMIT}/penn_treebank/validation/0000.parquet"
    )
    assert found["ptb-new"][:2] == [2, ["the test <unk>", "N"]]
    assert found["c4-new"][:2] == [1100, ["d0", "d1", "d2"]]
    assert found["lambada"][:2] == [1, ["One\n\ntwo three"]]
    assert found["lambada-standard"][:2] == [1, ["one two"]]
    (blob,) = (tmp_path / "home/hub/datasets--EleutherAI--lambada_openai/blobs").iterdir()
    blob.write_bytes(blob.read_bytes().replace(b"three", b"threw"))
    offline = load(url, tmp_path / "home", *names, HF_HUB_OFFLINE="1")
    assert offline | {"lambada": ""} == found | {"lambada": ""}
    damaged = f"damaged in the cache, now {blob}.damaged; not in the cache, and HF_HUB_OFFLINE"
    assert damaged in offline["lambada"]
    assert not [request for request in hub.requests if "train" in request], (
        "only what is evaluated is fetched"
    )
    with HubStandIn(repositories) as url:
        assert load(url, tmp_path / "home", "lambada")["lambada"] == found["lambada"]


def add_training_texts(repositories):
    """The training files beside the evaluated ones; C4's shard has the number of documents its draws rest on."""
    folder = {name: path for (_, name), path in repositories.items()}
    path = folder["Salesforce/wikitext"] / "wikitext-2-raw-v1" / "train-00000-of-00001.parquet"
    parquet(path, text=["", " = T = \n"])
    path = folder["FALcon6/ptb_text_only"] / "penn_treebank" / "train" / "0000.parquet"
    parquet(path, sentence=["the train <unk>"])
    documents = "".join(f'{{"text": "d{i}"}}\n' for i in range(356_317)).encode()
    shard = folder["allenai/c4"] / "en" / "c4-train.00000-of-01024.json.gz"
    shard.write_bytes(gzip.compress(documents, 1))


def test_training_texts_for_calibration_load(repositories, tmp_path):
    add_training_texts(repositories)
    with HubStandIn(repositories) as url:
        found = load(
            url, tmp_path, "wikitext2-train", "ptb-train", "c4-train", "c4-train-first1000",
            "wikitext103-train-head",
        )  # fmt: skip
    assert found["wikitext2-train"][:2] == [2, ["", " = T = \n"]]
    assert found["ptb-train"][:2] == [1, ["the train <unk>"]]
    assert found["c4-train"][:2] == [356_317, ["d0", "d1", "d2"]]
    assert found["c4-train"][2].endswith("/en/c4-train.00000-of-01024.json.gz")
    assert found["c4-train-first1000"][:2] == [1000, ["d0", "d1", "d2"]]
    assert "data.root=<folder>" in found["wikitext103-train-head"]


def test_multiple_choice_loads_from_the_files_the_hub_has(repositories, tmp_path):
    root = tmp_path / "choices"
    arc = {
        "question": ["Q"],
        "choices": [{"text": ["a", "b"], "label": ["A", "B"]}],
        "answerKey": ["B"],
    }
    files = {
        "baber/piqa": ("piqa_validation.parquet", {
            "goal": ["g"], "sol1": ["a"], "sol2": ["b"], "label": [1]}),
        "Rowan/hellaswag": ("data/validation-00000-of-00001.parquet", {
            "activity_label": ["J"], "ctx_a": ["A."], "ctx_b": ["b"], "endings": [["x", "y"]], "label": ["1"]}),
        "allenai/winogrande": ("winogrande_xl/validation-00000-of-00001.parquet", {
            "sentence": ["_ ran"], "option1": ["A"], "option2": ["B"], "answer": ["2"]}),
        "allenai/ai2_arc": ("ARC-Easy/test-00000-of-00001.parquet", arc),
    }  # fmt: skip
    for name, (path, columns) in files.items():
        parquet(root / name / path, **columns)
        repositories["datasets", name] = root / name
    parquet(root / "allenai/ai2_arc" / "ARC-Challenge/test-00000-of-00001.parquet", **arc)
    names = ("piqa", "hellaswag", "winogrande", "arc-easy", "arc-challenge")
    with HubStandIn(repositories) as url:
        found = load(url, tmp_path / "home", *names)
    for count, (row,), origin in found.values():
        assert count == 1
        assert json.loads(row)
        assert origin.startswith("hub: ")
    assert json.loads(found["hellaswag"][1][0])["endings"] == ["x", "y"]


def test_the_second_choice_is_named_in_the_origin(repositories, tmp_path):
    repositories["datasets", "ptb-text-only/ptb_text_only"] = repositories.pop(
        ("datasets", "FALcon6/ptb_text_only")
    )
    with HubStandIn(repositories) as url:
        rows, _, origin = load(url, tmp_path, "ptb")["ptb"]
    assert rows == 2
    assert origin.startswith(f"hub: ptb-text-only/ptb_text_only@{COMMIT}/")
    assert "instead of FALcon6/ptb_text_only@main" in origin
    assert "404" in origin


def test_a_cut_download_is_an_error_and_leaves_nothing_behind(repositories, tmp_path):
    with HubStandIn(repositories, truncate=True) as url:
        found = load(url, tmp_path / "home", "wikitext2", "c4", "lambada")
    for message in found.values():
        assert "the download failed" in message
        assert "data.source=folder" in message
    with HubStandIn(repositories) as url:
        assert load(url, tmp_path / "home", "wikitext2")["wikitext2"][1] == WIKITEXT


def test_a_damaged_file_is_an_error_that_names_it(repositories, tmp_path):
    path = (
        repositories["datasets", "Salesforce/wikitext"]
        / "wikitext-2-raw-v1"
        / "test-00000-of-00001.parquet"
    )
    path.write_bytes(path.read_bytes()[:-50])
    with HubStandIn(repositories) as url:
        message = load(url, tmp_path / "home", "wikitext2")["wikitext2"]
    assert "test-00000-of-00001.parquet cannot be read" in message
    assert "delete it" in message


def test_no_network_is_an_error_at_once(tmp_path):
    url = dead_address()
    for environment, cause in (
        ({}, f"no connection to {url}"),
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE forbids"),
    ):
        found = load(url, tmp_path, "wikitext2", "ptb", **environment)
        assert cause in found["wikitext2"]
        assert found["ptb"].count(cause) == 2, "both choices are told"
        assert "scale=embedded" in found["ptb"]
