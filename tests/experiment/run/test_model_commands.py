"""`lutlab quantize`, `chat` and `export`: a model becomes small, talks, and goes on to others."""

from __future__ import annotations

import csv
import io
import re

import pytest
from tests.models.architectures import config, randomized
from tests.tiny_models import byte_tokenizer
from transformers import AutoTokenizer

import lutlab
from lutlab.base import sources
from lutlab.base.escapes import visible
from lutlab.base.specs import ModelRun, ModelSpec
from lutlab.experiment.run import advice, chat_command, cli, export_command, main, quantize_command
from lutlab.models.families import model_class

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}. {% endfor %}"
    "{% if add_generation_prompt %}I:{% endif %}"
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder of a tiny model that GGUF has types for, with a chat template."""
    folder = tmp_path_factory.mktemp("source") / "tiny"
    written = config("llama-2")
    written.hidden_size, written.intermediate_size, written.tie_word_embeddings = 64, 96, True
    randomized(model_class(written).from_config(written)).save_pretrained(folder)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def small(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "four"
    words = [f"{source}", "method=rtn", "method.symmetric=true", "q=4", "g=32", f"out={folder}"]
    assert quantize_command.main([*words, f"results={folder.parent / 'results'}"]) == 0
    return folder


def test_a_model_becomes_small(source, small):
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (source, small)]
    assert sizes[1] < sizes[0] / 4
    modes = {path.stat().st_mode for path in small.iterdir()}
    assert len(modes) == 1, "files of one folder are for the same readers"
    model = lutlab.load(small)
    assert model.get_input_embeddings().packed.bits == 8
    assert {str(p.dtype) for p in model.parameters()} == {"torch.float16"}


def test_a_check_says_what_was_lost(tmp_path, capsys):
    words = ["llama-embedded-s", "method=rtn", "q=4", "g=32", f"out={tmp_path / 'x'}", "check=true"]
    assert quantize_command.main([*words, f"results={tmp_path}", "embeddings=2"]) == 0
    out = capsys.readouterr().out
    rows = re.findall(r"(\d\.\d{4}) +(\d\.\d{3})$", out, re.MULTILINE)
    (layers, all_of_it), (above, below) = zip(*(map(float, row) for row in rows), strict=True)
    assert 0 < layers < all_of_it
    assert 1 > above > below
    assert re.search(r"^full precision +\d+\.\d+$", out, re.MULTILINE)


def test_a_conversation_goes_on(small, capsys, monkeypatch):
    """Each answer is that of the Python API to all messages before it; the folder needs no method=stored."""
    monkeypatch.setattr("sys.stdin", io.StringIO("the\n\nand\n/new\nthe\n/exit\nnever\n"))
    assert chat_command.main([f"{small}", "tokens=9", "threads=1", "dtype=float32"]) == 0
    out, err = capsys.readouterr()
    model, tokenizer = lutlab.load(small, "float32"), AutoTokenizer.from_pretrained(small)
    talk, answers = [], []
    for message in ("the", "and"):
        talk.append({"role": "user", "content": message})
        answers += lutlab.complete(model, tokenizer, [talk], tokens=9, chat=True)
        talk.append({"role": "assistant", "content": answers[-1]})
    assert out == "".join(f"{visible(answer)}\n" for answer in [*answers, answers[0]])
    assert err.count("tokens=9]") == err.count("[9 tokens"), "a limit that cut is named"
    assert "never" not in out


def test_raw_text_goes_on(small, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("the\n"))
    assert chat_command.main([f"{small}", "tokens=5", "raw=true", "dtype=float32"]) == 0
    model, tokenizer = lutlab.load(small, "float32"), AutoTokenizer.from_pretrained(small)
    assert (
        capsys.readouterr().out
        == visible(lutlab.complete(model, tokenizer, "the", tokens=5)) + "\n"
    )


def test_ctrl_c_keeps_the_conversation(small, capsys, monkeypatch):
    from lutlab.generate import text

    pieces = text.stream

    def interrupted(*args, **options):
        yield next(iter(pieces(*args, **options)))
        raise KeyboardInterrupt

    monkeypatch.setattr(text, "stream", interrupted)
    monkeypatch.setattr("sys.stdin", io.StringIO("the\nand\n"))
    assert chat_command.main([f"{small}", "tokens=9"]) == 0
    out, err = capsys.readouterr()
    assert out.count(" …\n") == 2
    assert err.count("[1 tokens") == 2


def test_a_model_goes_on_to_others(small, tmp_path, capsys):
    places = {
        "gguf": tmp_path / "x.gguf",
        "gptq": tmp_path / "g",
        "compressed_tensors": tmp_path / "c",
    }
    words = [f"{name}={place}" for name, place in places.items()]
    assert export_command.main([f"{small}", *words]) == 0
    assert capsys.readouterr().out.count(" MB\n") == 3
    ids = AutoTokenizer.from_pretrained(small)("the end", return_tensors="pt").input_ids
    expected = lutlab.load(small, "float32")(ids).logits
    for place in places.values():
        assert lutlab.load(place, "float32")(ids).logits.allclose(expected, atol=1e-2)


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        (quantize_command, ["llama-embedded-s"], "give a new folder, as out=small"),
        (quantize_command, ["llama-embedded-s", "out={small}"], "is not empty"),
        (
            quantize_command,
            ["no-such-model", "out={tmp}/x"],
            "or the path of a folder or GGUF file",
        ),
        (quantize_command, ["{small}", "out={tmp}/x"], "is quantized already"),
        (
            quantize_command,
            ["llama-embedded-s", "method=rtn", "q=4", "out={tmp}/x", "embeddings=9"],
            "q=9",
        ),
        (quantize_command, ["bert-embedded-s", "out={tmp}/x"], "give embeddings=0"),
        (chat_command, ["llama-embedded-s", "method=none"], "raw=true"),
        (
            chat_command,
            ["{small}", "length=4", "raw=true", "tokens=many"],
            "tokens=many: give a number",
        ),
        (export_command, ["{small}"], "no layout"),
        (export_command, ["gguf=x.gguf"], "name the folder"),
        (export_command, ["llama-embedded-s", "gptq={tmp}/x"], "no config.json"),
    ],
)
def test_mistakes(command, words, message, small, tmp_path, capsys):
    assert command.main([word.format(small=small, tmp=tmp_path) for word in words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_binary_codes_are_refused_with_what_works(tmp_path, source, capsys):
    words = [
        f"{source}",
        "method=bcq",
        "q=2",
        "g=32",
        f"out={tmp_path / 'two'}",
        f"results={tmp_path}",
    ]
    assert quantize_command.main(words) == 0
    assert export_command.main([f"{tmp_path / 'two'}", f"gguf={tmp_path / 'x.gguf'}"]) == 2
    assert "method=rtn or gptq" in capsys.readouterr().err


def test_a_warning_is_as_the_records_have_it(caplog, monkeypatch):
    """Perplexities of the warning are those of published rows at g=64; what it advises has half of them or less."""
    folder = sources.checkout() / "results" / "published" / "amd-epyc-2cores" / "lutlab"
    measured = {}
    for name in ("gguf_types", "binary_and_uniform"):
        with (folder / name / "table.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["column"] == "ppl" and row["variant"] == "real-data-first4":
                    measured[name, row["row"].rpartition("/")[2], row["row"]] = float(
                        row["measured"]
                    )

    def of(table: str, row: str) -> float:
        return next(
            value for (name, _, key), value in measured.items() if (name, key) == (table, row)
        )

    for (method, q), perplexity in advice.BEYOND_USE.items():
        table = "gguf_types" if method == "gptq" else "binary_and_uniform"
        row = f"llama/all/gptq_q{q}_g64" if method == "gptq" else f"llama/q{q}/{method}"
        assert perplexity == pytest.approx(of(table, row), rel=0.01)
    for row, perplexity in (
        ("hessian_bcq_q3_g64", 46),
        ("gptq_q4_g64", 32),
        ("fp16", advice.FULL_PRECISION),
    ):
        assert perplexity == pytest.approx(of("gguf_types", f"llama/all/{row}"), rel=0.01)
    monkeypatch.setattr(advice, "linear_shapes", lambda _: {"layer": (64, 64)})
    model, ships = ModelSpec("s", "folder", "s"), ModelSpec("s", "embedded", "llama-embedded-s")
    advice.warn(ModelRun(model, "rtn", 4, 64))
    advice.warn(ModelRun(ships, "rtn", 3, 64))
    assert not caplog.records
    advice.warn(ModelRun(model, "rtn", 3, 64))
    assert "has perplexity 84.8" in caplog.text


@pytest.mark.parametrize("name", [*cli.COMMANDS])
def test_every_command_has_a_page(name, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["lutlab", name, "--help"])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 0
    assert f"lutlab {name}" in capsys.readouterr().out
