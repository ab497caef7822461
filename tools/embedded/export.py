"""Trained checkpoints -> the models that ship: fp16 safetensors, tokenizer, and a model card of measured facts.

python -m tools.embedded.export --data ../shared/data --work /tmp/train
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import SUMS, write_sums
from lutlab.base.specs import Text, TextSpec
from lutlab.data import load_text, pydocs
from lutlab.data.masking import masked_stream
from lutlab.evaluators.masked_lm import masked_predictions
from lutlab.evaluators.perplexity import perplexity
from lutlab.models.families import model_class
from lutlab.models.load import EMBEDDED
from tools.embedded import corpus
from tools.embedded.train import BOS, CONTEXT, EOS, MASK, PAD, RECIPES, VOCABULARY

HELD_OUT = ("topics", "docstrings", "wikitext2", "ptb")
MASK_SEED = 1  # as the evaluator masked_lm chooses tokens
_BERT = RECIPES["bert-embedded-s"]
_CARD_HEAD = f"""# Embedded models

Small language models trained by `python -m tools.embedded.train` so that every table of lutlab runs without a
download. They stand in for large ones and say so in each cell; nothing measured on them is compared with a paper's
number. Architecture: OPT and LLaMA as transformers builds them, 4 layers, context {CONTEXT}, tied head; LLaMA with
grouped-query attention (4 heads, 2 key-value heads); BERT for masked tokens, context {_BERT.context}, first trained to
name the next token ({_BERT.legs[0]} of {_BERT.steps} batches). Tokenizer: byte-level BPE, {VOCABULARY} entries, trained
on the same text; BERT's has a mask token appended. bf16 autocast (BERT: float32), Muon for hidden matrices and AdamW
for the rest; batches of 16 windows (BERT: {_BERT.batch}).

Never trained on: anything evaluated. Training paragraphs that share {pydocs.OVERLAP_WORDS} consecutive words with the
held-out Python documentation, or with the test and validation splits of WikiText-2, PTB, LAMBADA, TinyStories or
tinyshakespeare, were dropped before the tokenizer was trained; no PTB text was used at all. The check works paragraph
by paragraph: of the held-out documentation's runs of {pydocs.OVERLAP_WORDS} words, 0.12 % still occur across a
paragraph border of the training text. Python's own documentation (CPython 3.11's) was seen {corpus.PYDOCS_REPEATS}
times an epoch. The hours were taken on a machine shared with other work.

Held-out perplexity per token (GPTQ protocol, windows of {CONTEXT}, float32): `topics` and `docstrings` are the
embedded slices; `wikitext2` (test) and `ptb` (validation) are the real sets. The vocabulary is small, so these are
not comparable with perplexities of models of 50,000 tokens.
"""
_MASKED_HEAD = """Held-out loss of masked tokens in nats (15 % of the tokens, 80/10/10, float32), and the loss
of guessing each by its frequency in the training text alone:
"""


def export(names: list[str], data: Path, work: Path) -> None:
    """Write models/embedded/<name>/ in fp16, with its SHA256SUMS.

    training.json and MODEL_CARD.md keep the facts of models that are not named.
    """
    facts = EMBEDDED / "training.json"
    measured = json.loads(facts.read_text())["models"] if facts.exists() else {}
    for name in names:
        recipe = RECIPES[name]
        state = torch.load(work / f"{name}.pt", weights_only=True)
        if state["state"]["step"] < recipe.steps:
            raise LutlabError(
                f"{name} is at step {state['state']['step']} of {recipe.steps}: train it first"
            )
        config = recipe.config()
        model = model_class(config).from_config(config, dtype=torch.float32)
        model.load_state_dict(state["model"])
        folder = EMBEDDED / name
        model.half().save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        masked = recipe.family == "bert"
        tokenizer = _mask_tokenizer(work) if masked else _tokenizer(work, config.bos_token_id)
        tokenizer.save_pretrained(folder)
        texts = {name: _text(name, data) for name in HELD_OUT}
        measure = _masked if masked else _perplexities
        measured[name] = {
            "parameters": model.num_parameters(),
            "bytes": sum(f.stat().st_size for f in folder.iterdir() if f.name != SUMS),
            "tokens": recipe.steps * recipe.batch * recipe.context,
            "hours": round(state["state"]["seconds"] / 3600, 2),
            **measure(model.float().eval(), tokenizer, texts, work),
            "curve": state["state"]["curve"],
        }
        write_sums(folder)
    measured = {name: measured[name] for name in RECIPES if name in measured}
    corpus_facts = json.loads((work / "corpus.json").read_text())
    facts.write_text(json.dumps({"models": measured, **corpus_facts}) + "\n")
    (EMBEDDED / "MODEL_CARD.md").write_text(_card(measured, corpus_facts))


def _tokenizer(work: Path, begin: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    token = tokenizer.id_to_token(begin)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, begin)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=token,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=10**30,
    )


def _mask_tokenizer(work: Path) -> PreTrainedTokenizerFast:
    """BERT's: a text between <s> and </s>, two texts with </s> between them, and a mask token of the next free id."""
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    tokenizer.add_special_tokens([MASK])
    special = [(token, tokenizer.token_to_id(token)) for token in (BOS, EOS)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {EOS}", pair=f"{BOS} $A {EOS} $B:1 {EOS}:1", special_tokens=special
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        cls_token=BOS,
        sep_token=EOS,
        mask_token=MASK,
        model_max_length=10**30,
    )


def _text(protocol: str, data: Path) -> Text:
    source = "embedded" if protocol in pydocs.SLICES else "folder"
    return load_text(TextSpec(protocol, source, str(data) if source == "folder" else None))


def _perplexities(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: dict[str, Text], work: Path
) -> dict[str, dict[str, float]]:
    """Per token, by the GPTQ protocol."""
    joined = {name: "\n\n".join(text.rows) for name, text in texts.items()}
    found = {name: perplexity(model, tokenizer, text, CONTEXT) for name, text in joined.items()}
    return {"perplexity": {name: round(value, 2) for name, value in found.items()}}


def _masked(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: dict[str, Text], work: Path
) -> dict[str, dict[str, float]]:
    """Loss of the masked tokens in nats, and what the tokens' frequencies in the training text alone would give."""
    counts = np.bincount(np.load(work / "train.npy", mmap_mode="r"), minlength=len(tokenizer)) + 1
    unigram = -np.log(counts / counts.sum())
    losses: dict[str, dict[str, float]] = {"masked_loss": {}, "unigram_loss": {}}
    for name, text in texts.items():
        length = model.config.max_position_embeddings
        windows = masked_stream(text, tokenizer, length, MASK_SEED)
        tokens, nll, *_ = zip(*masked_predictions(model, model, windows), strict=True)
        losses["masked_loss"][name] = round(sum(nll) / sum(tokens), 3)
        named = windows.ids[windows.chosen].numpy()
        losses["unigram_loss"][name] = round(float(unigram[named].mean()), 3)
    return losses


def _card(measured: dict[str, dict], corpus_facts: dict) -> str:
    """MODEL_CARD.md: data, tokens, loss curve, held-out numbers, all from this run's."""
    causal = {name: m for name, m in measured.items() if "perplexity" in m}
    masked = {name: m for name, m in measured.items() if "masked_loss" in m}
    lines = [_CARD_HEAD, *_table(causal, {"ppl": "perplexity"})]
    if masked:
        lines += [
            "",
            _MASKED_HEAD,
            *_table(masked, {"loss": "masked_loss", "unigram": "unigram_loss"}),
        ]
    lines += [
        "",
        "## Loss",
        "",
        "Training loss (nats a token) at a tenth of the run each; all steps are in training.json.",
        "",
    ]
    lines += ["| model | " + " | ".join(f"{i * 10} %" for i in range(11)) + " |", "|---" * 12 + "|"]
    for name, m in measured.items():
        curve = m["curve"]
        picked = [curve[round(i * (len(curve) - 1) / 10)][1] for i in range(11)]
        lines.append(f"| {name} | " + " | ".join(f"{loss:.2f}" for loss in picked) + " |")
    lines += [
        "",
        "## Data",
        "",
        f"{corpus_facts['tokens']:,} tokens an epoch.",
        "",
        "| source | documents | characters |",
        "|---|---|---|",
    ]
    lines += [
        f"| {k} | {v['documents']:,} | {v['characters']:,} |"
        for k, v in corpus_facts["sources"].items()
    ]
    return "\n".join(lines) + "\n"


def _table(measured: dict[str, dict], kinds: dict[str, str]) -> list[str]:
    """One line a model: its size and training, and its numbers on every held-out text; kinds: title -> fact."""
    titles = [f"{title} {text}" for title in kinds for text in HELD_OUT]
    header = ["model", "parameters", "fp16 MB", "training tokens", "hours, one CPU thread", *titles]
    lines = []
    for name, m in measured.items():
        size = [f"{m['parameters']:,}", f"{m['bytes'] / 1e6:.1f}", f"{m['tokens']:,}", m["hours"]]
        lines.append(
            [name, *size, *(m[fact][text] for fact in kinds.values() for text in HELD_OUT)]
        )
    header, *lines = ("| " + " | ".join(map(str, cells)) + " |" for cells in (header, *lines))
    return [header, "|" + "---|" * header.count(" | ") + "---|", *lines]


def main() -> None:
    """Command line, see the head of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="data folder, see docs/data-layout.md"
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of train_embedded's checkpoints"
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(RECIPES)}; default all")
    arguments = parser.parse_args()
    export(arguments.names or list(RECIPES), arguments.data, arguments.work)


if __name__ == "__main__":
    main()
