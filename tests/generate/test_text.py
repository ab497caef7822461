"""Texts grow as transformers grows them, letter by letter, whatever the batch; mistakes say what to do."""

from functools import partial

import pytest
import torch
from tests.base.refusals import refused
from tests.models.architectures import config, make, randomized
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab.generate.text import Chooser, encoded
from lutlab.models.families import model_class

PROMPTS = ["the other", "a näther ether", "e"]
TOKENIZER = byte_tokenizer()
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[it]{% endif %}"
)


@pytest.fixture(scope="module")
def model():
    return make("llama-2")


@pytest.fixture
def chatty():
    """A tokenizer that puts <s> before every text, and has a template."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def continued(model, ids, tokens=12):
    """Greedy tokens of transformers, up to the end of the text."""
    prompt = torch.tensor([ids])
    out = model.generate(prompt, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    spoken = out[0, len(ids) :].tolist()
    return spoken[: spoken.index(0)] if 0 in spoken else spoken


def test_greedy_tokens_are_those_of_transformers(model):
    pieces = list(lutlab.stream(model, TOKENIZER, PROMPTS, tokens=12))
    for row, prompt in enumerate(PROMPTS):
        expected = continued(model, TOKENIZER(prompt).input_ids)
        assert [piece.id for piece in pieces if piece.row == row] == expected


class Spells(lutlab.generate.contract.Engine):
    """Says the tokens that it is given, whatever the prompt."""

    def __init__(self, model, ids):
        self.model, self.batch, self.length, self.left = model, 1, 64, list(ids)

    def step(self, _):
        return torch.nn.functional.one_hot(torch.tensor([self.left.pop(0)]), 260).float()

    prefill = step
    obstacle = rewind = bytes_read = facts = None


def test_letters_of_several_tokens_come_whole(model):
    text = "ä–日本"
    ids = TOKENIZER(text).input_ids[1:]
    pieces = list(lutlab.stream(Spells(model, ids), TOKENIZER, "e", tokens=len(ids)))
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.text for piece in pieces if piece.text] == list(text)


def test_a_chat_is_the_template_spelled_out(model, chatty):
    ids = chatty("<s>[user] the other[it]", add_special_tokens=False).input_ids
    assert ids.count(0) == 1
    assert [prompt.tolist() for prompt in encoded(chatty, ["the other"], chat=True)] == [ids]
    pieces = lutlab.stream(model, chatty, "the other", tokens=12, chat=True)
    assert [piece.id for piece in pieces] == continued(model, ids)


@pytest.mark.parametrize(("chat", "answer"), [(True, "yes"), (False, "yesno")])
def test_an_answer_ends_with_the_tokenizers_end_of_text(model, chatty, monkeypatch, chat, answer):
    """It ends a turn also where the model's config names another token, and is not printed."""
    monkeypatch.setattr(model.generation_config, "eos_token_id", [259])
    ids = chatty("yes<s>no", add_special_tokens=False).input_ids
    assert lutlab.complete(Spells(model, ids), chatty, "e", tokens=len(ids), chat=chat) == answer


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
def test_a_template_that_fails_is_one_message(chatty, template, message):
    chatty.chat_template = template
    refused(message, encoded, chatty, ["e"], chat=True)


def test_a_row_ends_with_the_end_of_text(model):
    complete = partial(lutlab.complete, model, TOKENIZER, tokens=30, temperature=1.5)
    texts = complete(PROMPTS, seed=5)
    # its own generator: no row depends on the others
    assert texts == [complete(prompt, seed=5 + row) for row, prompt in enumerate(PROMPTS)]
    assert len({len(text) for text in texts}) > 1


def test_sampling_draws_from_the_warped_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -9.0]])
    for temperature, more, kept in ((1.0, {}, 5), (0.5, {"top_k": 2}, 2), (2.0, {"top_p": 0.6}, 2)):
        chosen = Chooser(temperature, **more)
        drawn = torch.cat([chosen(logits) for _ in range(4000)]).bincount(minlength=5) / 4000
        warped = (logits[0] / temperature).index_fill(0, torch.arange(kept, 5), -torch.inf)
        assert torch.allclose(drawn, warped.softmax(-1), atol=0.04)
    assert Chooser()(logits).tolist() == [0]
    refused("NaN", Chooser(), torch.full((1, 4), torch.nan))


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
def test_mistakes(model, arguments, message):
    refused(message, lutlab.stream, model, TOKENIZER, **{"tokens": 4, **arguments})


def test_what_generation_config_asks_beyond_ends_is_said_once(model, monkeypatch, caplog):
    monkeypatch.setattr(model.generation_config, "repetition_penalty", 1.3)
    for _ in range(2):
        lutlab.complete(model, TOKENIZER, "e", tokens=2)
    assert sum("repetition_penalty=1.3" in line for line in caplog.messages) == 1


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
    message = r"context is 32 tokens of 64: .*longrope.* at most as many"
    refused(message, lutlab.engine, model, length=33)
