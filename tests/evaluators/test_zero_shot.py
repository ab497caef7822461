"""Multiple choice against lm-evaluation-harness itself: its own task files over records made here, and real ones."""

import json
import math
from pathlib import Path

import pytest
import torch
from tests.tiny_models import byte_tokenizer, one_thread, tiny_llama, tiny_opt  # noqa: F401

from lutlab import evaluators, registry
from lutlab.data import choices, load_text
from lutlab.data.choices import Choice, item_rows
from lutlab.errors import LutlabError
from lutlab.evaluators.zero_shot import zero_shot
from lutlab.specs import Subject, Text, TextSpec

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("Ann", "Bob", "the old cat", "Zoë")
# data set -> (lm-eval's task file, its split, records as on the hub); endings of unequal length, spaces, marks, accents
RECORDS = {
    "piqa": ("piqa/piqa.yaml", "validation", [
        {"goal": f"How to open a jar {i}? ", "sol1": "hit it " * (i % 4 + 1), "sol2": f"Turn the lid {'é' * i}.",
         "label": i % 2} for i in range(12)
    ]),
    "hellaswag": ("hellaswag/hellaswag.yaml", "validation", [
        {"activity_label": "Baking a cake", "ctx_a": f"[header] How to bake [title] Mix {i} eggs  well.",
         "ctx_b": "the COOK" if i % 2 else "", "label": str(i % 4),
         "endings": ["stirs [step] it.", "eats  the raw dough and the bowl.", " sleeps", f"counts to {10**i}."]}
        for i in range(12)
    ]),
    "winogrande": ("winogrande/default.yaml", "validation", [
        {"sentence": f"{a} thanked {b} because _ had helped {i} times.", "option1": a, "option2": b,
         "answer": str(i % 2 + 1)}
        for i, (a, b) in enumerate((a, b) for a in NAMES for b in NAMES if a != b)
    ]),
    "arc-easy": ("arc/arc_easy.yaml", "test", [
        {"question": f"What weighs {i} kg?", "answerKey": "124"[i % 3] if i % 2 else "ABD"[i % 3], "choices": {
            "text": ["a stone", "an elephant's ear", "ice", "nothing at all"],
            "label": list("1234" if i % 2 else "ABCD")}}
        for i in range(12)
    ]),
}  # fmt: skip
LOCAL = """
include: {task}
task: local
dataset_path: json
dataset_name: null
training_split: null
fewshot_split: null
{unused}_split: null
dataset_kwargs: {{data_files: {{{split}: {path}}}}}
"""


def quiet(test):
    """lm-eval and its dependencies warn about their own futures; what they compute is what is compared."""
    names = ("DeprecationWarning", "FutureWarning", "UserWarning", "ResourceWarning")
    names += ("pytest.PytestUnraisableExceptionWarning",)
    return pytest.mark.filterwarnings(*(f"ignore::{name}" for name in names))(test)


def items_of(dataset):
    return choices(text_of(dataset))


def text_of(dataset):
    records = map(json.dumps, RECORDS[dataset][2])
    return Text(dataset, tuple(item_rows(dataset, records, "here")), "rows", "here")


def harness(model, tokenizer, dataset, records, folder, monkeypatch, bos=None):
    """Metrics of lm-eval's own task file, its data set replaced by local records."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    task, split, _ = RECORDS[dataset]
    path = folder / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    source = Path(lm_eval.__file__).parent / "tasks" / task
    unused = "validation" if split == "test" else "test"
    task = LOCAL.format(task=source, split=split, unused=unused, path=path)
    (folder / "local.yaml").write_text(task)
    return lm_eval.simple_evaluate(
        model=HFLM(pretrained=model.eval(), tokenizer=tokenizer, batch_size=4, add_bos_token=bos),
        tasks=["local"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=100,  # the analytic standard error of a mean is given only if any is asked for
    )["results"]["local"]


def compare(ours, theirs, dataset):
    assert ours.n == theirs["sample_len"]
    assert ours.accuracy == theirs["acc,none"]
    assert ours.stderr(ours.accuracy) == pytest.approx(theirs["acc_stderr,none"], abs=1e-12)
    if dataset == "winogrande":  # lm-eval gives no acc_norm there
        assert ours.accuracy_norm == ours.accuracy
    else:
        assert ours.accuracy_norm == theirs["acc_norm,none"]


@quiet
@pytest.mark.parametrize("dataset", RECORDS)
@pytest.mark.parametrize(
    ("make", "bos", "harness_bos"), [(tiny_opt, "tokenizer", None), (tiny_llama, "none", False)]
)
def test_agrees_with_lm_eval(dataset, make, bos, harness_bos, tmp_path, monkeypatch):
    model, tokenizer = make(context=96), byte_tokenizer()
    theirs = harness(
        model, tokenizer, dataset, RECORDS[dataset][2], tmp_path, monkeypatch, harness_bos
    )
    compare(zero_shot(model, tokenizer, items_of(dataset), bos), theirs, dataset)


@quiet
def test_agrees_with_lm_eval_on_real_questions(shared, tmp_path, monkeypatch):
    folder = shared / "data" / "piqa"
    answers = (folder / "valid-labels.lst").read_text().split()
    lines = (folder / "valid.jsonl").read_text().splitlines()[:60]
    records = [
        json.loads(line) | {"label": int(a)} for line, a in zip(lines, answers, strict=False)
    ]
    model, tokenizer = tiny_opt(context=1024), byte_tokenizer()
    theirs = harness(model, tokenizer, "piqa", records, tmp_path, monkeypatch)
    items = choices(load_text(TextSpec("piqa", "folder", str(shared / "data"))))
    assert len(items) == 1838
    compare(zero_shot(model, tokenizer, items[:60]), theirs, "piqa")


def test_equals_one_ending_at_a_time_written_out():
    model, tokenizer = tiny_opt(context=256).eval(), byte_tokenizer()
    items = items_of("hellaswag")
    margins, right, right_norm = [], 0, 0
    for item in items:
        likelihoods = []
        for context, ending in zip(item.contexts, item.endings, strict=True):
            ids = torch.tensor([tokenizer(context + ending).input_ids])
            start = len(tokenizer(context).input_ids)
            with torch.no_grad():
                log_p = model(ids).logits[0].double().log_softmax(-1)
            likelihoods.append(
                sum(log_p[i - 1, ids[0, i]].item() for i in range(start, ids.shape[1]))
            )
        norms = [v / len(e[1:]) for v, e in zip(likelihoods, item.endings, strict=True)]
        right += max(range(4), key=likelihoods.__getitem__) == item.gold
        right_norm += max(range(4), key=norms.__getitem__) == item.gold
        margins.append(
            likelihoods[item.gold] - max(v for i, v in enumerate(likelihoods) if i != item.gold)
        )
    found = zero_shot(model, tokenizer, items)
    assert found.margins == pytest.approx(margins, rel=1e-4, abs=1e-4)
    assert (found.accuracy, found.accuracy_norm) == (right / 12, right_norm / 12)
    assert sum(m > 0 for m in found.margins) == right


def test_a_model_that_knows_the_answer_is_right_and_length_only_counts_unnormed():
    """Logits of a uniform model: every token costs the same, so the shortest ending wins, and per character a tie."""
    model, tokenizer = tiny_llama(), byte_tokenizer()

    def uniform(_module, _args, output):
        output.logits = torch.zeros_like(output.logits)
        return output

    model.register_forward_hook(uniform)
    short_is_right = [Choice(("x", "x"), (" bcdf", " bc"), 1)] * 3
    long_is_right = [Choice(("x", "x"), (" bcdf", " bc"), 0)]
    found = zero_shot(model, tokenizer, short_is_right + long_is_right)
    assert found.accuracy == 0.75
    assert found.margins == pytest.approx([2 * math.log(260)] * 3 + [-2 * math.log(260)], rel=1e-5)
    # 5 tokens for 4 characters beat 3 tokens for 2: the space is a token and no character
    assert found.accuracy_norm == 0.25


def test_batches_do_not_change_the_result(monkeypatch):
    model, tokenizer = tiny_opt(), byte_tokenizer()
    together = zero_shot(model, tokenizer, items_of("hellaswag"))
    monkeypatch.setattr(evaluators, "LOGITS_BYTES", 1)
    one_by_one = zero_shot(model, tokenizer, items_of("hellaswag"))
    assert together.margins == pytest.approx(one_by_one.margins, rel=1e-4, abs=1e-4)


def test_the_measurement_says_what_it_rests_on():
    model, tokenizer = tiny_opt(), byte_tokenizer()
    subject = Subject(model, tokenizer, (), text_of("piqa"), 2048)
    measured = registry.lookup("evaluator", "zero_shot")().measure(subject)
    assert measured.n == len(measured.samples) == 12
    accuracy = measured.values["accuracy"]
    assert accuracy == sum(margin > 0 for margin in measured.samples) / 12
    assert measured.values["accuracy_stderr"] == pytest.approx(
        math.sqrt(accuracy * (1 - accuracy) / 11)
    )
    assert set(measured.values) == {
        "accuracy", "accuracy_norm", "accuracy_stderr", "accuracy_norm_stderr",
    }  # fmt: skip
    facts = measured.facts
    assert (facts["protocol"], facts["bos"], facts["seqlen"], facts["text_sha256"]) == (
        "piqa", 0, 64, "rows",
    )  # fmt: skip
    other = registry.lookup("evaluator", "zero_shot")(bos="none").measure(subject)
    assert other.facts["bos"] is None
    assert other.samples != measured.samples


def test_what_cannot_be_scored_is_named():
    model, tokenizer = tiny_opt(), byte_tokenizer()
    subject = Subject(model, tokenizer, (), Text("lambada", ("a b",), "", ""), 64)
    evaluator = registry.lookup("evaluator", "zero_shot")()
    with pytest.raises(LutlabError, match=r"'lambada' is a list of examples.*take one of: piqa"):
        evaluator.measure(subject)
    with pytest.raises(LutlabError, match="zero_shot needs a text"):
        evaluator.measure(Subject(model, tokenizer, (), None, 64))
    with pytest.raises(LutlabError, match="example 1 ends with"):
        zero_shot(model, tokenizer, [Choice(("a", "a"), (" b", " " + "z" * 70), 0)])
    with pytest.raises(LutlabError, match="no examples"):
        zero_shot(model, tokenizer, [])
