"""A text of the user's own is evaluated and calibrated on under the name that it was given."""

import json
from unittest import mock

import pytest
from tests.base.refusals import refused
from tests.models.folders import loaded
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab.base.specs import TextSpec
from lutlab.data import load_text, token_stream, user
from lutlab.data.protocols import PROTOCOLS
from lutlab.experiment.run import main
from lutlab.experiment.store.store import Store


@pytest.fixture(autouse=True)
def _forgets_names():
    with mock.patch.dict(PROTOCOLS):
        yield


@pytest.fixture
def texts(tmp_path):
    """A folder of every kind of file, and what they say together."""
    (tmp_path / "a.txt").write_text("One line.\nAnother line.\n")
    rows = ["A row.", "Another row."]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    (tmp_path / "c.csv").write_text("no text")
    return tmp_path, ["One line.\nAnother line.", *rows]


def test_files_are_read_in_order(texts):
    folder, pieces = texts
    assert user.read(folder)[0] == pieces
    assert user.read(folder / "b.jsonl")[0] == pieces[1:]
    text = load_text(TextSpec("mine", user.SOURCE, str(folder)))
    tokenizer = byte_tokenizer(bos=False)
    ids = token_stream(text, tokenizer, 8)
    assert tokenizer.decode(ids) == "\n\n".join(pieces)


@pytest.mark.parametrize(("name", "place", "message"), [
    ("wikitext2", "a.txt", "lutlab's name of another text"),
    ("mi ne", "a.txt", "is no name"),
    ("mine", "none.txt", "there is no file or folder"),
    ("mine", "c", "has no file that ends with .txt"),
])  # fmt: skip
def test_mistakes_are_said(name, place, message, texts):
    (texts[0] / "c").mkdir()
    refused(message, load_text, TextSpec(name, user.SOURCE, str(texts[0] / place)))


def test_the_command_line_measures_it(tmp_path, monkeypatch, capsys):
    """By the same number as the Python API, in windows that the line chooses; calibrated on another file."""
    words = " ".join(f"word {number}" for number in range(400))
    (tmp_path / "mine.txt").write_text(words)
    (tmp_path / "other.txt").write_text(words.replace("word", "term"))
    line = [
        "lutlab",
        "model=llama-embedded-s",
        "evaluate=[ppl:mine]",
        "baseline=false",
        "data.window=64",
        "logger=none",
    ]
    line += [f"data.text.{name}={tmp_path / name}.txt" for name in ("mine", "other")]
    line.append(f"results={tmp_path / 'results'}")
    monkeypatch.setattr("sys.argv", [*line, "method=none"])
    assert main.main() == 0
    assert "ppl on mine, windows of 64" in capsys.readouterr().err
    (record,) = Store(tmp_path / "results").all().values()
    model = loaded("llama-embedded-s", "embedded")
    expected = lutlab.perplexity(model.model, model.tokenizer, tmp_path / "mine.txt", 64)
    assert record.values["ppl"] == pytest.approx(expected, rel=1e-6)
    line += ["method=gptq", "q=4", "g=32", "calibration.samples=2", "calibration.seqlen=32"]
    for text, code in (("other", 0), ("mine", 2)):
        monkeypatch.setattr("sys.argv", [*line, f"calibration.text={text}"])
        assert main.main() == code
    assert "would flatter" in capsys.readouterr().err
