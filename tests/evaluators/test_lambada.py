"""LAMBADA's numbers as an evaluator and as a function; that they are lm-eval's is tested in test_harness.py."""

import math

import pytest
import torch
from tests.evaluators.items import EXAMPLES, repeating, text_of
from tests.tiny_models import RUN, byte_tokenizer, tiny_llama, tiny_opt
from transformers import AutoModelForCausalLM, AutoTokenizer

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.specs import Subject, Text, TextSpec
from lutlab.data import load_text
from lutlab.evaluators.lambada import lambada


def written_out(model, tokenizer, texts):
    """Log-likelihood of each last word, one example at a time."""
    found = []
    for text in texts:
        ids = torch.tensor([tokenizer(text).input_ids])
        start = len(tokenizer(text[: text.rindex(" ")].rstrip()).input_ids)
        with torch.no_grad():
            log_p = model.eval()(ids).logits[0].double().log_softmax(-1)
        found.append(sum(log_p[i - 1, ids[0, i]].item() for i in range(start, ids.shape[1])))
    return found


def test_equals_one_example_at_a_time_written_out():
    model, tokenizer = tiny_llama(), byte_tokenizer()
    found = lambada(model, tokenizer, EXAMPLES).log_likelihoods
    assert len(found) == len(EXAMPLES)
    assert found[2:] == pytest.approx(written_out(model, tokenizer, EXAMPLES[2:]), rel=1e-5)


def test_a_real_model_finds_a_word(shared):
    folder = shared / "models" / "stories260K"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = list(load_text(TextSpec("lambada", "folder", str(shared / "data"))).rows[:5])
    texts.append(
        'Once upon a time there was a little girl named Lily. She loved to play. Her mom said, "Come here, Lily'
    )
    found = lambada(model, tokenizer, texts)
    assert found.accuracy > 0
    assert found.log_likelihoods == pytest.approx(written_out(model, tokenizer, texts), rel=1e-4)


def test_a_model_that_knows_the_answer_has_accuracy_one():
    """Logits that repeat the id two positions back: right for 'ababab', wrong for the rest."""
    model, tokenizer = repeating()
    found = lambada(model, tokenizer, ["x b b b b", "x b c d e"])
    assert found.accuracy == 0.5
    assert found.log_likelihoods[0] == pytest.approx(0, abs=1e-6)
    assert found.log_likelihoods[1] < -40


def test_the_measurement_says_what_it_rests_on():
    model, tokenizer = tiny_opt(), byte_tokenizer()
    subject = Subject(model, tokenizer, (), text_of("lambada"), 2048, RUN)
    measured = registry.lookup("evaluator", "lambada")().measure(subject)
    assert measured.n == len(measured.samples) == len(EXAMPLES)
    mean = sum(measured.samples) / measured.n
    assert measured.values["lambada_perplexity"] == pytest.approx(math.exp(-mean))
    spread = torch.tensor(measured.samples).double().std().item() / math.sqrt(measured.n)
    stderr = measured.values["lambada_perplexity"] * spread
    assert measured.errors["lambada_perplexity"] == pytest.approx(stderr)
    assert 0 <= measured.values["lambada_accuracy"] <= 1
    assert (measured.facts["task"], measured.facts["bos"]) == ("lambada_openai", 0)
    wrong = Subject(model, tokenizer, (), Text("wikitext2", ("a",), "", ""), 64, RUN)
    with pytest.raises(LutlabError, match="not examples"):
        registry.lookup("evaluator", "lambada")().measure(wrong)


def test_what_does_not_fit_is_left_out_and_named():
    found = lambada(tiny_opt(), byte_tokenizer(), ["fine here", "a " + "z" * 70, "so " * 40 + "on"])
    assert (found.n, found.left_out, found.cut) == (2, (1,), (2,))
    with pytest.raises(LutlabError, match="no examples"):
        lambada(tiny_opt(), byte_tokenizer(), [])
