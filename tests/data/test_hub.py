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
texts = {}
for name in sys.argv[1:]:
    try:
        text = load_text(TextSpec(name, "hub"))
        texts[name] = [len(text.rows), list(text.rows[:3]), text.origin]
    except LutlabError as error:
        texts[name] = str(error)
print(json.dumps(texts))
"""
WIKITEXT = ["", " = A = \n", " some text \n"]
WIKI, PTB, C4 = "Salesforce/wikitext", "FALcon6/ptb_text_only", "allenai/c4/en/c4"
WIKI_FILE = "wikitext-2-raw-v1/test-00000-of-00001.parquet"
CARD = "---\nconfigs:\n- config_name: wikitext-2-raw-v1\n  data_files:\n  - split: test\n"
CARD += "    path: wikitext-2-raw-v1/test-*\n---\n"
FILES = {
    f"{WIKI}/README.md": CARD, f"{WIKI}/{WIKI_FILE}": {"text": WIKITEXT},
    f"{PTB}/penn_treebank/validation/0000.parquet": {"sentence": ["the validation <unk>", "N"]},
    f"{PTB}/penn_treebank/test/0000.parquet": {"sentence": ["the test <unk>", "N"]},
    f"{C4}-validation.00000-of-00008.json.gz": "".join(f'{{"text": "d{i}", "url": "u"}}\n' for i in range(1200)),
    "EleutherAI/lambada_openai/data/lambada_test.jsonl": '{"text": "One\\n\\ntwo three"}\n',
    "cimec/lambada/plain_text/test-00000-of-00001.parquet": {"text": ["one two"], "domain": ["x"]},
}  # fmt: skip


def put(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            pyarrow.parquet.write_table(pyarrow.table(content), root / name)
        else:
            pack = (lambda data: gzip.compress(data, 1)) if name.endswith(".gz") else bytes
            (root / name).write_bytes(pack(content.encode()))


@pytest.fixture
def root(tmp_path):
    """Data sets' repositories, with the files and columns that the real ones have."""
    put(tmp_path / "repositories", FILES)
    return tmp_path / "repositories"


def served(root, **options):
    """A hub of the repositories in a folder."""
    folders = {f"{path.parent.name}/{path.name}": path for path in root.glob("*/*")}
    return HubStandIn({("datasets", name): path for name, path in folders.items()}, **options)


def load(url, home, *names, **environment):
    done = run_client(LOAD, url, home, *names, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_data_set_loads_with_its_commit_and_again_from_the_cache(root, tmp_path):
    expected = {
        "wikitext2": [3, WIKITEXT], "ptb": [2, ["the validation <unk>", "N"]], "ptb-new": [2, ["the test <unk>", "N"]],
        "c4-new": [1100, ["d0", "d1", "d2"]], "lambada": [1, ["One\n\ntwo three"]],
        "lambada-standard": [1, ["one two"]],
    }  # fmt: skip
    hub, home = served(root), tmp_path / "home"
    with hub as url:
        texts = load(url, home, *expected)
    assert {name: text[:2] for name, text in texts.items()} == expected
    pinned = "b08601e04326c79dfdd32d625aee71d232d685c3"
    assert texts["wikitext2"][2] == f"hub: {WIKI}@{pinned}/{WIKI_FILE}"
    assert texts["ptb"][2] == f"hub: {PTB}@{COMMIT}/penn_treebank/validation/0000.parquet"
    (blob,) = (home / "hub/datasets--EleutherAI--lambada_openai/blobs").iterdir()
    blob.write_bytes(blob.read_bytes().replace(b"three", b"threw"))
    offline = load(url, home, *expected, HF_HUB_OFFLINE="1")
    assert offline | {"lambada": ""} == texts | {"lambada": ""}
    damaged = f"damaged in the cache, now {blob}.damaged; not in the cache, and HF_HUB_OFFLINE"
    assert damaged in offline["lambada"]
    trained_on = [request for request in hub.requests if "train" in request]
    assert not trained_on, "only what is evaluated is fetched"
    with served(root) as url:
        assert load(url, home, "lambada")["lambada"] == texts["lambada"]


def test_training_texts_for_calibration_load(root, tmp_path):
    """C4's shard has the number of documents its draws rest on."""
    put(root, {
        f"{WIKI}/wikitext-2-raw-v1/train-00000-of-00001.parquet": {"text": ["", " = T = \n"]},
        f"{PTB}/penn_treebank/train/0000.parquet": {"sentence": ["the train <unk>"]},
        f"{C4}-train.00000-of-01024.json.gz": "".join(f'{{"text": "d{i}"}}\n' for i in range(356_317)),
    })  # fmt: skip
    expected = {
        "wikitext2-train": [2, ["", " = T = \n"]], "ptb-train": [1, ["the train <unk>"]],
        "c4-train": [356_317, ["d0", "d1", "d2"]], "c4-train-first1000": [1000, ["d0", "d1", "d2"]],
    }  # fmt: skip
    with served(root) as url:
        texts = load(url, tmp_path, *expected, "wikitext103-train-head")
    assert "data.root=<folder>" in texts.pop("wikitext103-train-head")
    assert {name: text[:2] for name, text in texts.items()} == expected
    assert texts["c4-train"][2].endswith("/en/c4-train.00000-of-01024.json.gz")


def test_multiple_choice_loads_from_the_files_the_hub_has(root, tmp_path):
    choices = [{"text": ["a", "b"], "label": ["A", "B"]}]
    arc = {"question": ["Q"], "choices": choices, "answerKey": ["B"]}
    put(root, {
        "baber/piqa/piqa_validation.parquet": {"goal": ["g"], "sol1": ["a"], "sol2": ["b"], "label": [1]},
        "Rowan/hellaswag/data/validation-00000-of-00001.parquet": {
            "activity_label": ["J"], "ctx_a": ["A."], "ctx_b": ["b"], "endings": [["x", "y"]], "label": ["1"]},
        "allenai/winogrande/winogrande_xl/validation-00000-of-00001.parquet": {
            "sentence": ["_ ran"], "option1": ["A"], "option2": ["B"], "answer": ["2"]},
        "allenai/ai2_arc/ARC-Easy/test-00000-of-00001.parquet": arc,
        "allenai/ai2_arc/ARC-Challenge/test-00000-of-00001.parquet": arc,
    })  # fmt: skip
    names = ("piqa", "hellaswag", "winogrande", "arc-easy", "arc-challenge")
    with served(root) as url:
        texts = load(url, tmp_path / "home", *names)
    for count, (row,), origin in texts.values():
        assert count == 1
        assert json.loads(row)
        assert origin.startswith("hub: ")
    assert json.loads(texts["hellaswag"][1][0])["endings"] == ["x", "y"]


def test_the_second_choice_is_named_in_the_origin(root, tmp_path):
    (root / "ptb-text-only").mkdir()
    (root / PTB).rename(root / "ptb-text-only/ptb_text_only")
    with served(root) as url:
        rows, _, origin = load(url, tmp_path, "ptb")["ptb"]
    assert rows == 2
    assert origin.startswith(f"hub: ptb-text-only/ptb_text_only@{COMMIT}/")
    assert f"instead of {PTB}@main" in origin
    assert "404" in origin


def test_a_cut_download_is_an_error_and_leaves_nothing_behind(root, tmp_path):
    with served(root, truncate=True) as url:
        texts = load(url, tmp_path / "home", "wikitext2", "c4", "lambada")
    for message in texts.values():
        assert "the download failed" in message
        assert "data.source=folder" in message
    with served(root) as url:
        assert load(url, tmp_path / "home", "wikitext2")["wikitext2"][1] == WIKITEXT


def test_a_damaged_file_is_an_error_that_names_it(root, tmp_path):
    path = root / WIKI / WIKI_FILE
    path.write_bytes(path.read_bytes()[:-50])
    with served(root) as url:
        message = load(url, tmp_path / "home", "wikitext2")["wikitext2"]
    assert f"{path.name} cannot be read" in message
    assert "delete it" in message


def test_no_network_is_an_error_at_once(tmp_path):
    url, offline = dead_address(), {"HF_HUB_OFFLINE": "1"}
    causes = (({}, f"no connection to {url}"), (offline, "HF_HUB_OFFLINE forbids"))
    for environment, cause in causes:
        texts = load(url, tmp_path, "wikitext2", "ptb", **environment)
        assert cause in texts["wikitext2"]
        assert texts["ptb"].count(cause) == 2, "both choices are told"
        assert "scale=embedded" in texts["ptb"]
