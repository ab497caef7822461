"""LAMBADA against lm-evaluation-harness itself, on models made here and, where present, on real ones and real text."""

import dataclasses
import json
import math

import pytest
import torch
from tests.tiny_models import byte_tokenizer, one_thread, tiny_llama, tiny_opt  # noqa: F401
from transformers import AutoModelForCausalLM, AutoTokenizer

from lutlab import evaluators, registry
from lutlab.data import load_text
from lutlab.errors import LutlabError
from lutlab.evaluators.lambada import encode_pairs, lambada
from lutlab.specs import Subject, Text, TextSpec

pytestmark = pytest.mark.usefixtures("one_thread")
EXAMPLES = [
    "She gave the boy an apple and the boy ate the apple",
    "no",
    "Two words",
    "A line ends here.\n\nThe next begins with a word",
    "spaces  before a  word",
    "every hen eats, every hen eats, every hen eats",
    "the context of this one is longer than the sixty-four tokens of the model, so its beginning is cut off; "
    "what is left must still end with the same word as before, and that word is the word",
]
TASK = """
task: lambada_local
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
output_type: loglikelihood
test_split: test
doc_to_text: "{{{{text.split(' ')[:-1]|join(' ')}}}}"
doc_to_target: "{{{{' '+text.split(' ')[-1]}}}}"
metric_list:
  - {{metric: perplexity, aggregation: perplexity, higher_is_better: false}}
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""


def harness(model, tokenizer, texts, folder, monkeypatch, bos=None):
    """(accuracy, perplexity, its standard error's sample) of lm-eval's own LAMBADA task over local examples."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    path = folder / "examples.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "lambada_local.yaml").write_text(TASK.format(path=path))
    found = simple_evaluate(
        model=HFLM(pretrained=model.eval(), tokenizer=tokenizer, batch_size=4, add_bos_token=bos),
        tasks=["lambada_local"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )["results"]["lambada_local"]
    return found["acc,none"], found["perplexity,none"]


# lm-eval and its dependencies warn about their own futures; what they compute is what is compared
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize(("bos", "harness_bos"), [("tokenizer", None), ("none", False)])
@pytest.mark.parametrize("make", [tiny_opt, tiny_llama])
def test_agrees_with_lm_eval_on_tiny_models(make, bos, harness_bos, tmp_path, monkeypatch):
    model, tokenizer = make(), byte_tokenizer()
    accuracy, ppl = harness(model, tokenizer, EXAMPLES, tmp_path, monkeypatch, harness_bos)
    ours = lambada(model, tokenizer, EXAMPLES, bos)
    assert (ours.accuracy, ours.n) == (accuracy, len(EXAMPLES))
    assert ours.perplexity == pytest.approx(ppl, rel=1e-4)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_agrees_with_lm_eval_on_a_real_model(shared, tmp_path, monkeypatch):
    folder = shared / "models" / "stories260K"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = list(load_text(TextSpec("lambada", "folder", str(shared / "data"))).rows[:20])
    texts += [
        'Once upon a time there was a little girl named Lily. She loved to play. Her mom said, "Come here, Lily'
    ]
    accuracy, ppl = harness(model, tokenizer, texts, tmp_path, monkeypatch)
    ours = lambada(model, tokenizer, texts)
    assert ours.accuracy == accuracy > 0
    assert ours.perplexity == pytest.approx(ppl, rel=1e-4)


@pytest.mark.parametrize("make", [tiny_opt, tiny_llama])
def test_equals_one_example_at_a_time_written_out(make):
    model, tokenizer = make().eval(), byte_tokenizer()
    expected = []
    for text in EXAMPLES[2:-1]:  # fits the context, has a context
        ids = torch.tensor([tokenizer(text).input_ids])
        start = len(tokenizer(text[: text.rindex(" ")].rstrip()).input_ids)
        with torch.no_grad():
            log_p = model(ids).logits[0].double().log_softmax(-1)
        expected.append(sum(log_p[i - 1, ids[0, i]].item() for i in range(start, ids.shape[1])))
    found = lambada(model, tokenizer, EXAMPLES).log_likelihoods[2:-1]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("make", [tiny_opt, tiny_llama])
def test_batches_do_not_change_the_result(make, monkeypatch):
    model, tokenizer = make(), byte_tokenizer()
    together = lambada(model, tokenizer, EXAMPLES)
    monkeypatch.setattr(evaluators, "LOGITS_BYTES", 1)
    one_by_one = lambada(model, tokenizer, EXAMPLES)
    assert together.log_likelihoods == pytest.approx(one_by_one.log_likelihoods, rel=1e-5)
    assert together.accuracy == one_by_one.accuracy


def test_a_model_that_knows_the_answer_has_accuracy_one():
    """Logits that repeat the id two positions back: right for 'ababab', wrong for the rest."""
    model, tokenizer = tiny_llama(), byte_tokenizer()

    def repeat(_module, _args, kwargs, output):
        ids = kwargs["input_ids"]
        output.logits = (
            torch.nn.functional.one_hot(ids.roll(1, 1), output.logits.shape[-1]).float() * 50
        )
        return output

    model.register_forward_hook(repeat, with_kwargs=True)
    found = lambada(model, tokenizer, ["x b b b b", "x b c d e"])
    assert found.accuracy == 0.5
    assert found.log_likelihoods[0] == pytest.approx(0, abs=1e-6)
    assert found.log_likelihoods[1] < -40


def test_context_and_target_tokens():
    tokenizer = byte_tokenizer()
    for text in EXAMPLES:
        (context, target), (bare_context, bare_target) = (
            encode_pairs(tokenizer, [text], bos)[0] for bos in ("tokenizer", "none")
        )
        assert tokenizer.decode(context[1:]) == text.rpartition(" ")[0].rstrip()
        assert tokenizer.decode(target).strip() == text.split(" ")[-1]
        assert target == bare_target
        assert context[0] == 0
        assert bare_context == (context[1:] or [0])


def test_the_measurement_says_what_it_rests_on():
    model, tokenizer = tiny_opt(), byte_tokenizer()
    subject = Subject(model, tokenizer, (), Text("lambada", tuple(EXAMPLES), "rows", "here"), 2048)
    measured = registry.lookup("evaluator", "lambada")().measure(subject)
    assert measured.n == len(measured.samples) == len(EXAMPLES)
    mean = sum(measured.samples) / measured.n
    assert measured.values["lambada_perplexity"] == pytest.approx(math.exp(-mean))
    spread = torch.tensor(measured.samples).double().std().item() / math.sqrt(measured.n)
    stderr = measured.values["lambada_perplexity"] * spread
    assert measured.values["lambada_perplexity_stderr"] == pytest.approx(stderr)
    assert 0 <= measured.values["lambada_accuracy"] <= 1
    facts = measured.facts
    assert (facts["protocol"], facts["bos"], facts["seqlen"], facts["text_sha256"]) == (
        "lambada",
        0,
        64,
        "rows",
    )
    other = registry.lookup("evaluator", "lambada")(bos="none").measure(subject)
    assert other.facts["bos"] is None
    assert other.samples != measured.samples
    with pytest.raises(LutlabError, match="not examples"):
        registry.lookup("evaluator", "lambada")().measure(
            dataclasses.replace(subject, text=Text("wikitext2", ("a",), "", ""))
        )


def test_accuracy_stderr_is_lm_evals():
    found = lambada(tiny_opt(), byte_tokenizer(), EXAMPLES)
    hits = torch.tensor(
        [1.0] * round(found.accuracy * found.n) + [0.0] * round((1 - found.accuracy) * found.n)
    )
    assert found.accuracy_stderr == pytest.approx(hits.std().item() / math.sqrt(found.n), abs=1e-7)


def test_what_cannot_be_scored_is_named():
    model, tokenizer = tiny_opt(), byte_tokenizer()
    with pytest.raises(LutlabError, match="no examples"):
        lambada(model, tokenizer, [])
    with pytest.raises(
        LutlabError, match=r"example 1 ends with '.*' *its last word makes 0 tokens|example 1"
    ):
        lambada(model, tokenizer, ["fine here", "a " + "z" * 70])
    with pytest.raises(LutlabError, match="bos 'both' is none of"):
        lambada(model, tokenizer, EXAMPLES, bos="both")
    tokenizer.bos_token = tokenizer.eos_token = None
    with pytest.raises(LutlabError, match="no BOS or EOS"):
        lambada(model, tokenizer, ["word"], bos="none")
    with torch.no_grad():
        model.lm_head.weight[:] = math.nan
    with pytest.raises(LutlabError, match=r"log-likelihood of example 0 .* is nan"):
        lambada(model, byte_tokenizer(), EXAMPLES)
