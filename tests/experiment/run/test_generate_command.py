"""`lutlab generate` continues a text by a model quantized as a row is; mistakes are one message and exit code 2."""

import pytest

from lutlab.experiment.run import generate_command, main

MODEL = ["model=llama-embedded-s", "method=rtn", "q=4", "g=32", "threads=1"]


def run(capsys, *arguments):
    code = generate_command.main([*MODEL, *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_text_grows_and_says_what_ran(capsys):
    code, out, err = run(capsys, "prompt=The function, ${returns}", "tokens=5")
    assert code == 0
    assert out.startswith("The function, ${returns}")
    assert len(out) > len("The function, ${returns}\n")
    assert "5 tokens, the first after" in err
    assert "1 threads; cache float32" in err


def test_prompts_of_a_batch_are_those_alone(capsys):
    prompts = ["The function", "A list of"]
    _, both, _ = run(capsys, *(f"prompt={one}" for one in prompts), "tokens=6")
    alone = [run(capsys, f"prompt={one}", "tokens=6")[1].rstrip("\n") for one in prompts]
    assert both == "\n\n".join(alone) + "\n"


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
