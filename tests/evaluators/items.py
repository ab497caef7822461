"""Records of five data sets as the hub has them: endings of unequal length, spaces, marks, accents."""

import json

import torch
from tests.tiny_models import byte_tokenizer, tiny_llama

from lutlab.base.specs import Text
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
            "She gave the boy an apple and the boy ate the apple",
            "no",
            "Two words",
            "A line ends here.\n\nThe next begins with a word",
            "spaces  before a  word",
            "every hen eats, every hen eats, every hen eats",
        )
    ],
}  # fmt: skip
EXAMPLES = tuple(record["text"] for record in RECORDS["lambada"])


def repeating():
    """A model whose logits repeat the id two positions back, and its tokenizer: right where letters alternate."""
    model = tiny_llama()

    def repeat(_module, _args, kwargs, output):
        ids = kwargs["input_ids"]
        output.logits = (
            torch.nn.functional.one_hot(ids.roll(1, 1), output.logits.shape[-1]).float() * 50
        )
        return output

    model.register_forward_hook(repeat, with_kwargs=True)
    return model, byte_tokenizer()


def text_of(name: str) -> Text:
    """The records of a protocol, as a text."""
    if name == "lambada":
        return Text(name, EXAMPLES, "rows", "here")
    rows = item_rows(name, map(json.dumps, RECORDS[name]), "here")
    return Text(name, tuple(rows), "rows", "here")
