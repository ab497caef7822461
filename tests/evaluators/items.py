"""What evaluators measure: a subject, and records of five data sets as the hub has them: unequal endings, accents."""

import json

import pytest
import torch
from tests.tiny_models import RUN, byte_tokenizer, tiny_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from lutlab.base.specs import Subject, Text
from lutlab.data.choices import item_rows

NAMES = ("Ann", "Bob", "the old cat", "Zoë")
RECORDS = {
    "piqa": [
        {"goal": f"How to open a jar {i}? ", "sol1": "hit it " * (i % 4 + 1), "sol2": f"Turn the lid {'é' * i}.",
         "label": i % 2} for i in range(12)
    ],
    "hellaswag": [
        {"activity_label": "Baking a cake", "ctx_a": f"[header] How to bake [title] Mix {i} eggs  well.",
         "ctx_b": "the COOK" if i % 2 else "", "label": str(i % 4),
         "endings": ["stirs [step] it.", "eats  the raw dough and the bowl.", " sleeps", f"counts to {10**i}."]}
        for i in range(12)
    ],
    "winogrande": [
        {"sentence": f"{a} thanked {b} because _ had helped {i} times.", "option1": a, "option2": b,
         "answer": str(i % 2 + 1)}
        for i, (a, b) in enumerate((a, b) for a in NAMES for b in NAMES if a != b)
    ],
    "arc-easy": [
        {"question": f"What weighs {i} kg?", "answerKey": "124"[i % 3] if i % 2 else "ABD"[i % 3], "choices": {
            "text": ["a stone", "an elephant's ear", "ice", "nothing at all"],
            "label": list("1234" if i % 2 else "ABCD")}}
        for i in range(12)
    ],
    "lambada": [
        {"text": text} for text in (
            "She gave the boy an apple and the boy ate the apple", "no", "Two words", "spaces  before a  word",
            "A line ends here.\n\nThe next begins with a word", "every hen eats, every hen eats, every hen eats",
        )
    ],
}  # fmt: skip
EXAMPLES = tuple(record["text"] for record in RECORDS["lambada"])


def subject(model=None, tokenizer=None, text=None, seqlen=64, layers=(), run=RUN):
    return Subject(model, tokenizer, tuple(layers), text, seqlen, run)


def check(measured, expected):
    assert {name: measured.values[name] for name in expected} == pytest.approx(expected)


def clock(monkeypatch, *seconds):
    """What is timed next takes so many seconds, then so many, …"""
    readings = iter(reading for end in seconds for reading in (0.0, end))
    monkeypatch.setattr("time.perf_counter", lambda: next(readings))


def real_model(shared, name):
    folder = shared / "models" / name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


def repeating():
    """A model whose logits repeat the id two positions back, and its tokenizer: right where letters alternate."""
    model = tiny_llama()

    def repeat(_module, _args, kwargs, output):
        last_but_one = kwargs["input_ids"].roll(1, 1)
        output.logits = torch.nn.functional.one_hot(last_but_one, output.logits.shape[-1]) * 50.0
        return output

    model.register_forward_hook(repeat, with_kwargs=True)
    return model, byte_tokenizer()


@torch.no_grad()
def log_likelihood(model, tokenizer, context, text):
    """Of what comes after the context in a text, in float64: one forward, no batch."""
    ids = torch.tensor([tokenizer(text).input_ids])
    log_p = model.eval()(ids).logits[0].double().log_softmax(-1)
    start = len(tokenizer(context).input_ids)
    return sum(log_p[i - 1, ids[0, i]].item() for i in range(start, ids.shape[1]))


def text_of(name: str) -> Text:
    """The records of a protocol, as a text."""
    rows = EXAMPLES if name == "lambada" else item_rows(name, map(json.dumps, RECORDS[name]), "")
    return Text(name, tuple(rows), "rows", "here")
