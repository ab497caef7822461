"""Evaluation protocols: a name fixes data set, split, and how rows become token ids. The one table of them is here.

Two papers that print "PTB" may mean different splits joined differently (LUT-GEMM v3 Table 4: `ptb`; ICLR Table 9:
`ptb-new`), so a number is only ever compared with numbers of the same name. A changed protocol is a new name.
"""

from __future__ import annotations

from dataclasses import dataclass

from lutlab.errors import LutlabError, nearest

GPTQ = "GPTQ repository, commit 2d65066, datautils.py"


@dataclass(frozen=True)
class Protocol:
    """How one named text is made.

    Attributes:
        dataset: key of a data set the sources know: wikitext2, ptb, c4, lambada, …
        split: split of that data set.
        kind: `stream`, one sequence of token ids cut into windows; or `examples`, rows judged one by one.
        join: separator between the rows of a stream; None where the stream is not a plain join.
        attested: False where we inferred it because no paper or code states it.
        description: what is read, and who says so.
        rows: only the first so many rows are read; None reads all.
        windows: the stream ends after so many windows; None keeps all full windows.
        crops: the windows are random crops of documents, not consecutive cuts of one text.
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


PROTOCOLS = {
    "wikitext2": Protocol(
        "wikitext2", "test", "stream", "\n\n", True,
        f"wikitext-2-raw-v1 rows joined by two newlines, one tokenisation [{GPTQ}]",
    ),
    "ptb": Protocol(
        "ptb", "validation", "stream", "\n\n", True,
        f"Penn Treebank as the papers' 'PTB': validation sentences joined by two newlines [{GPTQ}, get_ptb]",
    ),
    "ptb-new": Protocol(
        "ptb", "test", "stream", " ", True,
        f"Penn Treebank test sentences joined by a space [{GPTQ}, get_ptb_new; --new-eval]",
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
    ),
    "lambada-standard": Protocol(
        "lambada-standard", "test", "examples", None, True,
        "the original tokenised lower-case LAMBADA, last word [lm-evaluation-harness, task lambada_standard]",
    ),
    "lambada-joined": Protocol(
        "lambada", "test", "stream", "\n\n", False,
        "OpenAI's LAMBADA as one text: LUT-GEMM's 'LAMBADA ppl' is too high for last words; its text is not stated",
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
}  # fmt: skip


def protocol(name: str) -> Protocol:
    """Look a protocol up.

    Raises:
        LutlabError: unknown name; the message suggests the nearest one.
    """
    if name not in PROTOCOLS:
        raise LutlabError(f"unknown protocol '{name}': {nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]
