"""Trained checkpoints -> the models that ship: fp16 safetensors, tokenizer, and a model card of measured facts.

python -m lutlab.embedded.export --data ../shared/data --work /tmp/train
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, processors
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from lutlab.data import load_text, pydocs
from lutlab.embedded import corpus
from lutlab.embedded.train import CONTEXT, EOS, PAD, RECIPES, VOCABULARY
from lutlab.errors import LutlabError
from lutlab.evaluators.perplexity import perplexity
from lutlab.models.load import EMBEDDED
from lutlab.specs import TextSpec

_CARD_HEAD = f"""# Embedded models

Small language models trained by `python -m lutlab.embedded.train` so that every table of lutlab runs without a
download. They stand in for large ones and say so in each cell; nothing measured on them is compared with a paper's
number. Architecture: OPT and LLaMA as transformers builds them, 4 layers, context {CONTEXT}, tied head; LLaMA with
grouped-query attention (4 heads, 2 key-value heads). Tokenizer: byte-level BPE, {VOCABULARY} entries, trained on the
same text. bf16 autocast, Muon for hidden matrices and AdamW for the rest; batches of 16 windows.

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


def export(names: list[str], data: Path, work: Path) -> None:
    """Write models/embedded/<name>/ in fp16; training.json and MODEL_CARD.md keep the facts of models not named."""
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
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(state["model"])
        folder = EMBEDDED / name
        model.half().save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        tokenizer = _tokenizer(work, config.bos_token_id)
        tokenizer.save_pretrained(folder)
        model = model.float().eval()
        perplexities = {
            text: round(perplexity(model, tokenizer, _joined(text, data), seqlen=CONTEXT), 2)
            for text in ("topics", "docstrings", "wikitext2", "ptb")
        }
        measured[name] = {
            "parameters": model.num_parameters(),
            "bytes": sum(f.stat().st_size for f in folder.iterdir()),
            "tokens": recipe.steps * recipe.batch * CONTEXT,
            "hours": round(state["state"]["seconds"] / 3600, 2),
            "perplexity": perplexities,
            "curve": state["state"]["curve"],
        }
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


def _joined(protocol: str, data: Path) -> str:
    source = "embedded" if protocol in pydocs.SLICES else "folder"
    text = load_text(TextSpec(protocol, source, str(data) if source == "folder" else None))
    return "\n\n".join(text.rows)


def _card(measured: dict[str, dict], corpus_facts: dict) -> str:
    """MODEL_CARD.md: data, tokens, loss curve, held-out perplexity, all from this run's numbers."""
    header = (
        "| model | parameters | fp16 MB | training tokens | hours, one CPU thread | "
        + " | ".join(f"ppl {text}" for text in next(iter(measured.values()))["perplexity"])
    )
    lines = [
        _CARD_HEAD,
        header + " |",
        "|" + "---|" * (header.count("|")),
    ]
    for name, m in measured.items():
        cells = [
            name,
            f"{m['parameters']:,}",
            f"{m['bytes'] / 1e6:.1f}",
            f"{m['tokens']:,}",
            m["hours"],
        ]
        lines.append("| " + " | ".join(str(c) for c in [*cells, *m["perplexity"].values()]) + " |")
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
