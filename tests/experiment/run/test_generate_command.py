"""`lutlab generate` continues a text by a model quantized as a row is; mistakes are one message and exit code 2."""

import pytest
from tests.models.architectures import make
from tests.tiny_models import byte_tokenizer
from transformers import AutoTokenizer

import lutlab
from lutlab.experiment.run import generate_command, main

MODEL = ["model=llama-embedded-s", "method=rtn", "q=4", "g=32", "threads=1"]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what is quantized is kept in its results/


def run(capsys, *arguments):
    code = generate_command.main([*MODEL, *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_text_grows_and_says_what_ran(capsys):
    code, out, err = run(capsys, "prompt=The function, ${returns}", "tokens=5")
    assert code == 0
    assert out.startswith("The function, ${returns}")
    assert len(out) > len("The function, ${returns}\n")
    assert "5 tokens (cut there: tokens=5), the first after" in err
    assert "1 threads; cache float32" in err


def test_prompts_of_a_batch_are_those_alone(capsys):
    prompts = ["The function", "A list of"]
    _, both, _ = run(capsys, *(f"prompt={one}" for one in prompts), "tokens=6")
    alone = [run(capsys, f"prompt={one}", "tokens=6")[1].rstrip("\n") for one in prompts]
    assert both == "\n\n".join(alone) + "\n"


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """A folder of a tiny model whose tokenizer has a chat template."""
    folder = tmp_path_factory.mktemp("chatty")
    make("llama-2").save_pretrained(folder)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{{ bos_token }}you: {{ messages[0].content }}{% if add_generation_prompt %} I:{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    return folder


def test_an_answer_is_printed_alone_and_the_model_kept(capsys, chatty, tmp_path):
    kept = tmp_path / "kept"
    talk = ["model=folder", "chat=true", "tokens=9", "prompt=the other"]
    code, out, err = run(capsys, *talk, f"model.id={chatty}", f"save={kept}")
    assert code == 0, err
    tokenizer = AutoTokenizer.from_pretrained(kept)
    said = lutlab.complete(lutlab.load(kept), tokenizer, "the other", tokens=9, chat=True)
    assert out == said + "\n"
    again = [one for one in MODEL if not one.startswith(("method", "q=", "g="))]
    assert generate_command.main([*again, *talk, f"model.id={kept}", "method=stored"]) == 0
    assert capsys.readouterr().out == out
    _, both, _ = run(capsys, *talk, f"model.id={chatty}", "prompt=e")
    assert both.startswith(f"> the other\n{out}\n> e\n")
    code, out, err = run(capsys, *talk, f"model.id={chatty}", f"save={kept}")
    assert (code, out) == (2, "")
    assert "kept is not empty" in err


def test_ctrl_c_keeps_what_there_is(capsys, monkeypatch):
    from lutlab.generate import text

    pieces = text.stream

    def interrupted(*args, **options):
        yield next(iter(pieces(*args, **options)))
        raise KeyboardInterrupt

    monkeypatch.setattr(text, "stream", interrupted)
    code, out, err = run(capsys, "prompt=The function", "tokens=9")
    assert code == 130
    assert out.startswith("The function")
    assert "1 tokens" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no prompt"),
        (["prompt="], "prompt 0 is empty"),
        (["prompt=x", "tokens=few"], "tokens=few: give a number, as tokens=128"),
        (["prompt=x", "tokens=0"], "tokens is 0"),
        (["prompt=x", "tokens=4", "tokens=5"], "tokens= is given twice"),
        (["prompt=x", "tokens=100000"], "the model's context is"),
        (["prompt=x", "length=2", "tokens=4"], "a row of the cache holds 2"),
        (["prompt=x", "device=cpu,auto"], "one model is run; give one value"),
        (["prompt=x", "+exp=table4"], "it is of a table or a sweep"),
        (["prompt=x", "methd=bcq"], "did you mean 'method'"),
        (["prompt=x", "engine=fast"], "unknown engine 'fast'"),
        (["prompt=x", "chat=yes"], "chat=yes: give chat=true or chat=false"),
        (["prompt=x", "chat=true"], "no chat template"),
        (["prompt=x", "method=none", "save=new"], "no layer of this LlamaForCausalLM is quantized"),
        (["prompt=x", "model=product", "model.id=64x64"], "no model: name a model"),
    ],
)
def test_mistakes(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_the_command_is_found(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["lutlab", "generate", "model=llama-embedded-s"])
    assert main.main() == 2
    assert "no prompt" in capsys.readouterr().err
