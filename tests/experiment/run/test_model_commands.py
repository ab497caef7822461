"""`lutlab quantize`, `generate`, `chat` and `export`: a model becomes small, talks, and goes on to others."""

import io
import json
import re
from pathlib import Path

import pytest
from tests.experiment.run.table4 import cells_of
from tests.models.architectures import config, randomized
from tests.tiny_models import byte_tokenizer
from transformers import AutoTokenizer

import lutlab
from lutlab.base import sources
from lutlab.base.escapes import visible
from lutlab.base.specs import ModelRun, ModelSpec
from lutlab.experiment.run import advice, cli, main
from lutlab.experiment.run.chat_command import main as chat
from lutlab.experiment.run.export_command import main as export
from lutlab.experiment.run.generate_command import main as generate
from lutlab.experiment.run.quantize_command import main as quantize
from lutlab.generate import own, text
from lutlab.models.families import model_class

MODEL = ["model=llama-embedded-s", "threads=1"]
ROW = [*MODEL, "method=rtn", "q=4", "g=40"]  # a row ends in part of a group


@pytest.fixture
def output(capsys, tmp_path, monkeypatch):
    """`output(main, words, code=0)` of a command in an empty folder: what it prints, and its errors."""
    monkeypatch.chdir(tmp_path)  # what is quantized is kept in its results/

    def call(main, words, code=0):
        ended = main([*words])
        out, err = capsys.readouterr()
        assert ended == code, err
        assert not code or "Traceback" not in err
        return out, err

    return call


@pytest.fixture
def interrupted(monkeypatch):
    """Each text is interrupted after its first piece."""
    pieces = text.stream

    def stream(*args, **options):
        yield next(iter(pieces(*args, **options)))
        raise KeyboardInterrupt

    monkeypatch.setattr(text, "stream", stream)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder of a tiny model that GGUF has types for, with a chat template."""
    folder = tmp_path_factory.mktemp("source") / "tiny"
    written = config("llama-2")
    written.hidden_size, written.intermediate_size, written.tie_word_embeddings = 64, 96, True
    randomized(model_class(written).from_config(written)).save_pretrained(folder)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}. "
        "{% endfor %}{% if add_generation_prompt %}I:{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def small(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "four"
    words = [f"{source}", "method=rtn", "method.symmetric=true", "q=4", "g=32", f"out={folder}"]
    assert quantize([*words, f"results={folder.parent / 'results'}"]) == 0
    return folder


@pytest.fixture(scope="module")
def talker(small):
    """The small model and its tokenizer, by the Python API."""
    return lutlab.load(small, "float32"), AutoTokenizer.from_pretrained(small)


@pytest.fixture
def typed(monkeypatch):
    """Have standard input say a text."""
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_model_becomes_small(source, small):
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (source, small)]
    assert sizes[1] < sizes[0] / 4
    modes = {path.stat().st_mode for path in small.iterdir()}
    assert len(modes) == 1, "files of one folder are for the same readers"
    model = lutlab.load(small)
    assert model.get_input_embeddings().packed.bits == 8
    assert {str(p.dtype) for p in model.parameters()} == {"torch.float16"}


def test_a_check_says_what_was_lost(tmp_path, output):
    words = ["llama-embedded-s", "method=rtn", "q=4", "g=32", f"out={tmp_path / 'x'}", "check=true"]
    out, _ = output(quantize, [*words, f"results={tmp_path}", "embeddings=2"])
    rows = re.findall(r"(\d\.\d{4}) +(\d\.\d{3})$", out, re.MULTILINE)
    (layers, all_of_it), (above, below) = zip(*(map(float, row) for row in rows), strict=True)
    assert 0 < layers < all_of_it
    assert 1 > above > below
    assert re.search(r"^full precision +\d+\.\d+$", out, re.MULTILINE)


def test_without_a_text_a_model_calibrates_on_its_own(source, tmp_path, output, monkeypatch):
    """Written once a results folder; a line that names a text does without it, a model that writes none fails."""
    monkeypatch.setattr(own, "ROUNDS", 1)
    monkeypatch.setattr(own, "TOKENS", 20)
    kept = tmp_path / "results" / "calibration"
    short = ["calibration.samples=2", "calibration.seqlen=16", "embeddings=0"]
    line = ["method=gptq", "q=4", "g=32", *short, f"results={tmp_path / 'results'}"]
    out, _ = output(quantize, [str(source), *line, "out=a"])
    assert "calibrated on 2 windows of the model's own text\n" in out
    (written,) = kept.glob("own-*.json")
    assert len(json.loads(written.read_text())) == 16
    monkeypatch.setattr(own, "write", None)  # whoever calls it fails
    output(quantize, [str(source), *line, "seed=1", "out=b"])
    first, second = (Path(name, "model.safetensors").read_bytes() for name in "ab")
    assert first == second
    written.unlink()
    out, _ = output(quantize, [str(source), *line, "out=c", "calibration.text=pydocs-train"])
    assert "calibrated on 2 windows of 'pydocs-train'\n" in out
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    _, err = output(quantize, ["bert-embedded-s", *line, "out=d"], code=2)
    assert "a model for masked_lm writes no text to calibrate on: name one" in err
    assert not [*kept.glob("own-*")]


def test_a_conversation_goes_on(small, talker, typed, output):
    """Each answer is that of the Python API to all messages before it; the folder needs no method=stored."""
    typed("the\n\nand\n/new\nthe\n/exit\nnever\n")
    out, err = output(chat, [f"{small}", "tokens=9", "threads=1", "dtype=float32"])
    talk, answers = [], []
    for message in ("the", "and"):
        talk.append({"role": "user", "content": message})
        answers += lutlab.complete(*talker, [talk], tokens=9, chat=True)
        talk.append({"role": "assistant", "content": answers[-1]})
    assert out == "".join(f"{visible(answer)}\n" for answer in [*answers, answers[0]])
    assert err.count("tokens=9]") == err.count("[9 tokens"), "a limit that cut is named"
    assert "never" not in out


def test_raw_text_goes_on(small, talker, typed, output):
    typed("the\n")
    out, _ = output(chat, [f"{small}", "tokens=5", "raw=true", "dtype=float32"])
    assert out == visible(lutlab.complete(*talker, "the", tokens=5)) + "\n"


def test_ctrl_c_keeps_the_conversation(small, typed, output, interrupted):
    typed("the\nand\n")
    out, err = output(chat, [f"{small}", "tokens=9"])
    assert out.count(" …\n") == 2
    assert err.count("[1 tokens") == 2


def test_a_model_goes_on_to_others(small, talker, tmp_path, output):
    names = {"gguf": "x.gguf", "gptq": "g", "compressed_tensors": "c"}
    words = [f"{small}", *(f"{kind}={tmp_path / name}" for kind, name in names.items())]
    assert output(export, words)[0].count(" MB\n") == 3
    model, tokenizer = talker
    ids = tokenizer("the end", return_tensors="pt").input_ids
    for name in names.values():
        logits = lutlab.load(tmp_path / name, "float32")(ids).logits
        assert logits.allclose(model(ids).logits, atol=1e-2)


@pytest.mark.parametrize(("command", "words", "message"), [
    (quantize, "llama-embedded-s", "give a new folder, as out=small"),
    (quantize, "llama-embedded-s out={small}", "is not empty"),
    (quantize, "no-such-model out={tmp}/x", "or the path of a folder or GGUF file"),
    (quantize, "{small} out={tmp}/x", "is quantized already"),
    (quantize, "llama-embedded-s method=rtn q=4 out={tmp}/x embeddings=9", "q=9"),
    (quantize, "bert-embedded-s out={tmp}/x", "give embeddings=0"),
    (chat, "llama-embedded-s method=none", "raw=true"),
    (chat, "{small} length=4 raw=true tokens=many", "tokens=many: give a number"),
    (export, "{small}", "no layout"),
    (export, "gguf=x.gguf", "name the folder"),
    (export, "llama-embedded-s gptq={tmp}/x", "no config.json"),
    (generate, "", "no prompt"),
    (generate, "prompt=", "prompt 0 is empty"),
    (generate, "prompt=x tokens=few", "tokens=few: give a number, as tokens=128"),
    (generate, "prompt=x tokens=0", "tokens is 0"),
    (generate, "prompt=x tokens=4 tokens=5", "tokens= is given twice"),
    (generate, "prompt=x tokens=100000", "the model's context is"),
    (generate, "prompt=x length=2 tokens=4", "a row of the cache holds 2"),
    (generate, "prompt=x device=cpu,auto", "one model is run; give one value"),
    (generate, "prompt=x +exp=table4", "it is of a table or a sweep"),
    (generate, "prompt=x methd=bcq", "did you mean 'method'"),
    (generate, "prompt=x engine=fast", "unknown engine 'fast'"),
    (generate, "prompt=x chat=yes", "chat=yes: give chat=true or chat=false"),
    (generate, "prompt=x chat=true", "no chat template"),
    (generate, "prompt=x method=none save=new", "no layer of this LlamaForCausalLM is quantized"),
    (generate, "prompt=x model=product model.id=64x64", "no model: name a model"),
])  # fmt: skip
def test_mistakes(command, words, message, small, tmp_path, output):
    row = ROW if command is generate else []
    out, err = output(command, [*row, *words.format(small=small, tmp=tmp_path).split()], code=2)
    assert out == ""
    assert message in err


def test_binary_codes_are_refused_with_what_works(tmp_path, source, output):
    out = tmp_path / "two"
    words = [f"{source}", "method=bcq", "q=2", "g=32", f"out={out}", f"results={tmp_path}"]
    output(quantize, words)
    _, err = output(export, [f"{out}", f"gguf={tmp_path / 'x.gguf'}"], code=2)
    assert "method=rtn or gptq" in err


def test_a_warning_is_as_the_records_have_it(caplog, monkeypatch):
    """Perplexities of the warning are those of published rows at g=64; what it advises raises them by so much."""
    measured = {
        (cell["variant"], cell["row"]): float(cell["measured"])
        for table in (sources.checkout() / "results" / "published").glob("*/lutlab/*/table.csv")
        if table.parent.name in ("gguf_types", "binary_and_uniform")
        for cell in cells_of(table.parent)
        if cell["column"] == "ppl" and cell["variant"].startswith("real-data-first")
    }
    expected = {
        f"llama/all/gptq_q{q}_g64" if method == "gptq" else f"llama/q{q}/{method}": perplexity
        for (method, q), perplexity in advice.BEYOND_USE.items()
    } | {"llama/all/fp16": advice.FULL_PRECISION}
    found = {row: measured["real-data-first4", row] for row in expected}
    assert expected == pytest.approx(found, rel=0.01)
    eight = "real-data-first8-samples-32"
    uniform = [measured[eight, f"llama/all/hessian_uniform_{row}"] for row in ("q3_g32", "q4_g48")]
    raised = [100 * (perplexity / measured[eight, "llama/all/fp16"] - 1) for perplexity in uniform]
    assert advice.CURE.endswith("{:.0f} % at q=3 g=32, by {:.0f} % at q=4 g=48".format(*raised))
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


@pytest.fixture
def run(output):
    return lambda *words, row=ROW, code=0: output(generate, [*row, *words], code)


def test_a_text_grows_and_says_what_ran(run):
    out, err = run("prompt=The function, ${returns}", "tokens=5")
    assert out.startswith("The function, ${returns}")
    assert len(out) > len("The function, ${returns}\n")
    assert "5 tokens (cut there: tokens=5), the first after" in err
    assert "1 threads; cache float32" in err


def test_prompts_of_a_batch_are_those_alone(run):
    prompts = ["prompt=The function", "prompt=A list of"]
    both, _ = run(*prompts, "tokens=6")
    alone = [run(prompt, "tokens=6")[0].removesuffix("\n") for prompt in prompts]
    assert both == "\n\n".join(alone) + "\n"


def test_an_answer_is_printed_alone_and_the_model_kept(run, source, tmp_path):
    kept = tmp_path / "kept"
    talk = ["model=folder", "chat=true", "tokens=9", "prompt=the other"]
    out, _ = run(*talk, f"model.id={source}", f"save={kept}")
    model, tokenizer = lutlab.load(kept), AutoTokenizer.from_pretrained(kept)
    answer = lutlab.complete(model, tokenizer, "the other", tokens=9, chat=True)
    assert out == visible(answer) + "\n"
    again, _ = run(*talk, f"model.id={kept}", "method=stored", row=MODEL)
    assert again == out
    both, _ = run(*talk, f"model.id={source}", "prompt=e")
    assert both.startswith(f"> the other\n{out}\n> e\n")
    out, err = run(*talk, f"model.id={source}", f"save={kept}", code=2)
    assert out == ""
    assert "kept is not empty" in err


def test_ctrl_c_keeps_what_there_is(run, interrupted):
    out, err = run("prompt=The function", "tokens=9", code=130)
    assert out.startswith("The function")
    assert "1 tokens" in err
