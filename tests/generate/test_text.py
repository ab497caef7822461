"""Texts grow as transformers grows them, letter by letter, whatever the batch; mistakes say what to do."""

import pytest
import torch
from tests.models.architectures import config, make, randomized
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.generate.text import Chooser, encoded
from lutlab.models.families import model_class

PROMPTS = ["the other", "a näther ether", "e"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[it]{% endif %}"
)


@pytest.fixture(scope="module")
def model():
    return make("llama-2")


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def transformers_tokens(model, tokenizer, prompt, tokens):
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    out = model.generate(ids, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return out[0, ids.shape[1] :].tolist()


def test_greedy_tokens_are_those_of_transformers(model, tokenizer):
    pieces = list(lutlab.stream(model, tokenizer, PROMPTS, tokens=12))
    for row, prompt in enumerate(PROMPTS):
        expected = transformers_tokens(model, tokenizer, prompt, 12)
        end = expected.index(0) if 0 in expected else len(expected)
        assert [piece.id for piece in pieces if piece.row == row] == expected[:end]


class Spells(lutlab.generate.contract.Engine):
    """Says the tokens that it is given, whatever it is asked."""

    def __init__(self, model, ids):
        self.model, self.batch, self.length, self.left = model, 1, 64, list(ids)

    def step(self, _):
        return torch.nn.functional.one_hot(torch.tensor([self.left.pop(0)]), 260).float()

    prefill = step
    obstacle = rewind = bytes_read = facts = None


def test_letters_of_several_tokens_come_whole(model, tokenizer):
    text = "ä–日本"
    ids = tokenizer(text).input_ids[1:]
    pieces = list(lutlab.stream(Spells(model, ids), tokenizer, "e", tokens=len(ids)))
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.text for piece in pieces if piece.text] == list(text)


def test_a_chat_is_the_template_spelled_out(model):
    chatty = byte_tokenizer()  # it puts <s> before every text
    chatty.chat_template = TEMPLATE
    ids = chatty("<s>[user] the other[it]", add_special_tokens=False).input_ids
    assert ids.count(0) == 1
    (found,) = encoded(chatty, ["the other"], chat=True)
    assert found.tolist() == ids
    pieces = lutlab.stream(model, chatty, "the other", tokens=12, chat=True)
    expected = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    spoken = expected[0, len(ids) :].tolist()
    assert [piece.id for piece in pieces] == spoken[: spoken.index(0) if 0 in spoken else None]


def test_an_answer_ends_with_the_tokenizers_end_of_text(model, monkeypatch):
    """It ends a turn also where the model's config names another token, and is not printed."""
    monkeypatch.setattr(model.generation_config, "eos_token_id", [259])
    chatty = byte_tokenizer()
    chatty.chat_template = TEMPLATE
    ids = chatty("yes<s>no", add_special_tokens=False).input_ids
    for chat, expected in ((True, "yes"), (False, "yesno")):
        engine = Spells(model, ids)
        assert lutlab.complete(engine, chatty, "e", tokens=len(ids), chat=chat) == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{% for", "fails .TemplateSyntaxError"),
        ("{{ raise_exception('no such role') }}", "fails .TemplateError: no such role"),
        ("{{ cycler.__init__.__globals__.os.getcwd() }}", "fails .SecurityError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "fails .RecursionError"),
        ("{{ messages[0].content + 1 }}", "fails .TypeError"),
        ("{{ '\\ud800' }}", "fails .UnicodeEncodeError"),
        ({"tool_use": "x", "other": "y"}, "multiple chat templates"),
        ("{{ messages[0].content * 3000000 }}", "makes 3000000 characters of messages of 1"),
        ("", "no chat template"),
        ("{# nothing #}", "makes 0 characters"),
    ],
)
def test_a_template_that_fails_is_one_message(template, message):
    chatty = byte_tokenizer()
    chatty.chat_template = template
    with pytest.raises(LutlabError, match=message):
        encoded(chatty, ["e"], chat=True)


def test_a_row_ends_with_the_end_of_text(model, tokenizer):
    texts = lutlab.complete(model, tokenizer, PROMPTS, tokens=30, temperature=1.5, seed=5)
    alone = [
        lutlab.complete(model, tokenizer, prompt, tokens=30, temperature=1.5, seed=5 + row)
        for row, prompt in enumerate(PROMPTS)
    ]
    assert texts == alone  # its own generator: no row depends on the others
    assert len({len(text) for text in texts}) > 1


def test_sampling_draws_from_the_warped_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -9.0]])
    for temperature, more, allowed in (
        (1.0, {}, range(5)),
        (0.5, {"top_k": 2}, (0, 1)),
        (2.0, {"top_p": 0.6}, (0, 1)),
    ):
        chosen = Chooser(temperature, **more)
        found = torch.cat([chosen(logits) for _ in range(4000)]).bincount(minlength=5) / 4000
        kept = torch.full((5,), -torch.inf)
        kept[list(allowed)] = logits[0, list(allowed)] / temperature
        assert torch.allclose(found, kept.softmax(-1), atol=0.04)
    assert Chooser()(logits).tolist() == [0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": ""}, "prompt 0 is empty"),
        ({"prompts": []}, "no prompt"),
        ({"prompts": [3]}, "strings only"),
        ({"prompts": "e", "tokens": 0}, "tokens is 0"),
        ({"prompts": "e", "tokens": 64}, "the model's context is 64"),
        ({"prompts": "e" * 99}, "the model's context is 64"),
        ({"prompts": "e", "temperature": -1}, "temperature=-1"),
        ({"prompts": "e", "top_p": 0}, "top_p=0"),
        ({"prompts": "e", "seed": 2**63}, "seed=9223372036854775808"),
        ({"prompts": "e", "cache": "float8"}, "cache=float8"),
        ({"prompts": "e", "chat": 1}, "chat is 1: give True or False"),
    ],
)
def test_mistakes(model, tokenizer, arguments, message):
    with pytest.raises(LutlabError, match=message):
        lutlab.stream(model, tokenizer, **{"tokens": 4, **arguments})


def test_nan_logits_are_refused():
    with pytest.raises(LutlabError, match="NaN"):
        Chooser()(torch.full((1, 4), torch.nan))


def test_what_generation_config_asks_beyond_ends_is_said_once(
    model, tokenizer, monkeypatch, caplog
):
    monkeypatch.setattr(model.generation_config, "repetition_penalty", 1.3)
    for _ in range(2):
        lutlab.complete(model, tokenizer, "e", tokens=2)
    found = [line for line in caplog.messages if "repetition_penalty=1.3" in line]
    assert len(found) == 1


def test_a_rotation_that_changes_with_the_length_keeps_its_first_context():
    """Of longrope, transformers' own cache holds keys of the other rotation from there on."""
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
        "factor": 4.0, "original_max_position_embeddings": 32,
    }  # fmt: skip
    chosen = config("llama-1")
    chosen.rope_parameters = rope
    model = randomized(model_class(chosen).from_config(chosen))
    assert lutlab.engine(model).length == 32
    with pytest.raises(
        LutlabError, match=r"context is 32 tokens of 64: .*longrope.* at most as many"
    ):
        lutlab.engine(model, length=33)
