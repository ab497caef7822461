"""Protocols of texts: a name fixes data set, split, and how rows become token ids. The one table of them is here.

Two papers that print "PTB" may mean different splits joined differently (LUT-GEMM v3 Table 4: `ptb`; ICLR Table 9:
`ptb-new`), so a number is only ever compared with numbers of the same name. A changed protocol is a new name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lutlab.base.errors import LutlabError, nearest

GPTQ = "GPTQ repository, commit 2d65066, datautils.py"
HARNESS = "lm-evaluation-harness"
GLUE = "GLUE, Wang et al. 2018"
OWN = "own"  # the text that a model writes, and its source
# what each kind is, in the words of a message
KINDS = {
    "stream": "one long text",
    "examples": "a list of examples with a last word",
    "choices": "a list of items with several endings",
    "pairs": "a list of pairs of sentences with a label",
    "calibration": "a text for calibration, never evaluated",
    "calibration-pairs": "a list of pairs to calibrate classifiers on",
}


@dataclass(frozen=True)
class Protocol:
    """Recipe of one named text.

    Attributes:
        dataset: key of a data set the sources know: wikitext2, ptb, c4, lambada, …
        split: split of that data set.
        kind: `stream`, one sequence of token ids cut into windows; `examples`, rows whose last word is predicted;
            `choices`, items one of whose endings is right; `pairs`, of sentences, with a label; `calibration`, random
            crops that a method looks at; `calibration-pairs`, of which it looks at some.
        join: separator between the rows of a stream; None where the stream is not a plain join.
        attested: False where we inferred it because no paper or code states it.
        description: the text that is read, and the authority for it.
        rows: only the first so many rows are read; None reads all.
        windows: the stream ends after so many windows; None keeps all full windows.
        crops: the windows are random crops of documents, not of the rows joined.
        documents: rows the data set has, where the draws depend on it; another number is refused.
        tokens: number of tokens of the text by GPT-2's tokenizer, every ending with its context, for predictions before
            a download; ARC-Challenge's without the last two questions.
        version: raised by whoever changes the token ids that the same rows become; part of the ids of its cells.
    """

    dataset: str
    split: str
    kind: str
    join: str | None
    attested: bool
    description: str
    rows: int | None = None
    windows: int | None = None
    crops: bool = False
    documents: int | None = None
    version: int = 1
    tokens: int | None = None

    def joined(self, rows: Iterable[str]) -> str:
        """The rows of a stream that is a plain join."""
        assert self.join is not None  # as of every stream but crops
        return self.join.join(rows)


PROTOCOLS = {
    "wikitext2": Protocol(
        "wikitext2", "test", "stream", "\n\n", True,
        f"wikitext-2-raw-v1 rows joined by two newlines, one tokenisation [{GPTQ}]",
        tokens=287_644,
    ),
    "ptb": Protocol(
        "ptb", "validation", "stream", "\n\n", True,
        f"Penn Treebank as the papers' 'PTB': validation sentences joined by two newlines [{GPTQ}, get_ptb]",
        tokens=93_212,
    ),
    "ptb-new": Protocol(
        "ptb", "test", "stream", " ", True,
        f"Penn Treebank test sentences joined by a space [{GPTQ}, get_ptb_new; --new-eval]",
        tokens=97_721,
    ),
    "c4": Protocol(
        "c4", "validation", "stream", None, True,
        f"256 random crops (seed 0) of documents longer than a window [{GPTQ}, get_c4]",
        windows=256, crops=True,
    ),
    "c4-new": Protocol(
        "c4", "validation", "stream", " ", True,
        f"first 1100 documents joined by a space, first 256 windows [{GPTQ}, get_c4_new; --new-eval]",
        rows=1100, windows=256,
    ),
    "lambada": Protocol(
        "lambada", "test", "examples", None, True,
        "OpenAI's LAMBADA, last word [lm-evaluation-harness, task lambada_openai]",
        tokens=435_382,
    ),
    "lambada-standard": Protocol(
        "lambada-standard", "test", "examples", None, True,
        "the original tokenised lower-case LAMBADA, last word [lm-evaluation-harness, task lambada_standard]",
        tokens=424_558,
    ),
    "lambada-joined": Protocol(
        "lambada", "test", "stream", "\n\n", False,
        "OpenAI's LAMBADA as one text: LUT-GEMM's 'LAMBADA ppl' is too high for last words; its text is not stated",
        tokens=440_534,
    ),
    "piqa": Protocol(
        "piqa", "validation", "choices", None, True,
        f"PIQA: which of two solutions reaches the goal [{HARNESS}, task piqa]",
        version=2, tokens=133_904,
    ),
    "hellaswag": Protocol(
        "hellaswag", "validation", "choices", None, True,
        f"HellaSwag: which of four endings continues the scene [{HARNESS}, task hellaswag]",
        version=2, tokens=3_173_195,
    ),
    "winogrande": Protocol(
        "winogrande", "validation", "choices", None, True,
        f"WinoGrande XL: which of two names fills the blank, judged by what follows it [{HARNESS}, task winogrande]",
        version=2, tokens=55_875,
    ),
    "arc-easy": Protocol(
        "arc-easy", "test", "choices", None, True,
        f"ARC-Easy: school science, mostly four answers [{HARNESS}, task arc_easy]",
        version=2, tokens=303_946,
    ),
    "arc-challenge": Protocol(
        "arc-challenge", "test", "choices", None, True,
        f"ARC-Challenge: the questions that retrieval and co-occurrence miss [{HARNESS}, task arc_challenge]",
        version=2, tokens=173_821,
    ),
    "topics": Protocol(
        "topics", "heldout", "stream", "\n\n", True,
        "held-out topics of Python's language reference [lutlab, data/pydocs.py]",
    ),
    "docstrings": Protocol(
        "docstrings", "heldout", "stream", "\n\n", True,
        "held-out docstrings of Python's standard library [lutlab, data/pydocs.py]",
    ),
    "passages": Protocol(
        "passages", "heldout", "examples", None, True,
        "held-out prose of Python's documentation, last word, as LAMBADA [lutlab, data/pydocs.py]",
    ),
    "passages-joined": Protocol(
        "passages", "heldout", "stream", "\n\n", True,
        "the passages as one text, as lambada-joined [lutlab, data/pydocs.py]",
    ),
    "continuations": Protocol(
        "continuations", "heldout", "choices", None, True,
        "held-out Python documentation: which of two sentences a third one continues [lutlab, data/embedded.py]",
        version=2,
    ),
    "mnli": Protocol(
        "mnli", "validation-matched", "pairs", None, True,
        f"MNLI: does the second sentence follow from the first; development pairs of the training genres [{GLUE}]",
        tokens=352_915,
    ),
    "mnli-mismatched": Protocol(
        "mnli", "validation-mismatched", "pairs", None, True,
        f"as mnli, development pairs of genres that were not trained on [{GLUE}]",
        tokens=370_000,
    ),
    "missing-word": Protocol(
        "missing-word", "heldout", "pairs", None, True,
        "held-out docstrings: which of three words stood between two parts? [lutlab, data/embedded.py]",
    ),
    "missing-word-mismatched": Protocol(
        "missing-word-mismatched", "heldout", "pairs", None, True,
        "as missing-word, of the language reference, which is not trained on [lutlab, data/embedded.py]",
    ),
    "stsb": Protocol(
        "stsb", "validation", "pairs", None, True,
        f"STS-B: how similar are two sentences, from 0 to 5; development pairs [{GLUE}]",
        tokens=42_414,
    ),
    "mnli-train": Protocol(
        "mnli", "train", "calibration-pairs", None, True, f"training pairs of MNLI [{GLUE}]",
    ),
    "mnli-train-subset": Protocol(
        "mnli", "train-subset", "calibration-pairs", None, True,
        "as mnli-train, of the pairs that a file has: other draws [lutlab]",
    ),
    "missing-word-train": Protocol(
        "missing-word-train", "train", "calibration-pairs", None, True,
        "training pairs of missing-word, docstrings of other modules [lutlab, data/embedded.py]",
    ),
    "stsb-train": Protocol(
        "stsb", "train", "calibration-pairs", None, True, f"training pairs of STS-B [{GLUE}]",
    ),
    "c4-train": Protocol(
        "c4", "train", "calibration", None, True,
        f"random crops of documents of C4's first training shard that are longer than a crop [{GPTQ}, get_c4]",
        crops=True, documents=356_317,
    ),
    "c4-train-first1000": Protocol(
        "c4", "train-first1000", "calibration", None, True,
        "as c4-train, but drawn from the shard's first 1000 documents: other crops than GPTQ's [lutlab]",
        rows=1000, crops=True, documents=1000,
    ),
    "wikitext2-train": Protocol(
        "wikitext2", "train", "calibration", "\n\n", True,
        f"random crops of wikitext-2-raw-v1's training rows joined by two newlines [{GPTQ}, get_wikitext2]",
    ),
    "wikitext103-train-head": Protocol(
        "wikitext103", "train-head", "calibration", "\n\n", True,
        "as wikitext2-train, of the first 2.75 MiB of WikiText-103's tokenised (<unk>) training text [lutlab]",
    ),
    "ptb-train": Protocol(
        "ptb", "train", "calibration", "\n\n", True,
        f"random crops of Penn Treebank's training sentences joined by two newlines [{GPTQ}, get_ptb]",
    ),
    "pydocs-train": Protocol(
        "pydocs-train", "train", "calibration", "\n\n", True,
        "as wikitext2-train, of the training part of Python's documentation [lutlab, data/pydocs.py]",
    ),
    OWN: Protocol(
        OWN, OWN, "calibration", "\n\n", True,
        "as wikitext2-train, of texts that the model writes by its own probabilities [lutlab, generate/own.py]",
    ),
}  # fmt: skip


def protocol(name: str) -> Protocol:
    """The protocol of a name.

    Raises:
        LutlabError: unknown name; the message suggests the nearest one.
    """
    if name not in PROTOCOLS:
        raise LutlabError(f"unknown protocol '{name}': {nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]
