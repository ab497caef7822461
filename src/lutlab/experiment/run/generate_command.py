"""`lutlab generate`: a model, quantized as any row of a table is, continues a text on the terminal.

    lutlab generate model=llama-embedded-m method=bcq q=3 g=128 prompt="def main("
    lutlab generate model=folder model.id=my-model method=stored prompt="Once" prompt="Twice" temperature=0.8 seed=1
    lutlab generate model=folder model.id=my-chat method=gptq_bcq q=3 g=64 save=my-chat-3bit chat=true prompt="Why?"
    lutlab generate model=folder model.id=my-chat-3bit method=stored chat=true prompt="Why not?"

What is not in the list below is a key of a sweep (--help): model, method, q, g, device, threads, seed and the others.
The text goes to the standard output, and what was run, with its speed, to the standard error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.escapes import visible
from lutlab.base.quiet import quiet
from lutlab.experiment.run.prepared import Planned
from lutlab.experiment.run.progress import shown
from lutlab.experiment.run.words import command
from lutlab.generate.contract import Engine

# The command's own words: name -> value where it is not given, what it means. Others are keys of a sweep.
_WORDS: dict[str, tuple[Any, str]] = {
    "prompt": ((), "the text to continue, or - for the standard input; given again, one more row of a batch."),
    "tokens": (128, "most tokens to generate."),
    "temperature": (0.0, "0 takes the likeliest token; above, drawn with seed=."),
    "top_k": (0, "draw from so many of the likeliest; 0: all."),
    "top_p": (1.0, "draw from the likeliest that together have this probability."),
    "length": (0, "tokens of a row of the cache; 0: prompt and tokens."),
    "cache": ("", "dtype of cached keys and values: float32, float16, bfloat16; empty: the engine's own choice."),
    "engine": ("", "its name; empty: the best that takes the model."),
    "chat": (False, "true: each prompt is a user's message in the tokenizer's chat template; its answer is printed."),
    "save": ("", "a new folder for the quantized model; afterwards model=folder model.id=<it> method=stored."),
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """The command; returns the exit code: 0, 2 for a mistake, 130 where Ctrl-C ended the text."""
    return command("generate", __doc__, _WORDS, _generate, arguments)


def _generate(words: dict[str, Any], rest: list[str]) -> int:
    prompts = [sys.stdin.read() if text == "-" else text for text in words["prompt"]]
    if not prompts:
        raise LutlabError('no prompt: give the text to continue, as prompt="Once upon a time"')
    chat, folder = words["chat"], words["save"]
    from lutlab.checkpoint.saving import check_new, save
    from lutlab.generate import engine
    from lutlab.generate.text import Chooser, encoded, stream

    planned = Planned.from_line(rest, _WORDS)
    job, tokenizer = planned.job, planned.tokenizer
    # Refused before a model is quantized, which may take hours.
    draws = {name: words[name] for name in ("temperature", "top_k", "top_p")}
    draws["seed"] = planned.settings.seed
    Chooser(**draws)
    longest = max(map(len, encoded(tokenizer, prompts, chat)))
    if folder:
        check_new(folder)
    with shown():
        model = planned.prepared().model
        if folder:
            with quiet():
                save(model, folder, tokenizer)
    if job.quantized:
        print(f"quantized blocks are kept in {job.quantized}", file=sys.stderr)
    length = words["length"] or longest + words["tokens"] - 1
    chosen = engine(model, len(prompts), length, words["cache"], words["engine"])
    pieces = stream(chosen, tokenizer, prompts, words["tokens"], chat=chat, **draws)
    # An answer is told from its message; a continuation begins with its prompt.
    begun = [f"> {text}\n" if len(prompts) > 1 else "" for text in prompts] if chat else prompts
    return _tell(pieces, chosen, begun, words["tokens"])


def _tell(pieces: Any, engine: Engine, begun: Sequence[str], most: int) -> int:
    """Print texts behind their beginnings, one row as it grows, several at the end; then the engine and kernels.

    Ctrl-C ends the text.
    """
    texts, stamps, code = list(begun), [time.perf_counter()], 0
    try:
        for piece in pieces:
            if len(begun) == 1:
                before = "" if len(stamps) > 1 else begun[0]
                print(visible(before + piece.text), end="", flush=True)
            stamps.append(time.perf_counter())
            texts[piece.row] += piece.text
    except KeyboardInterrupt:
        code = 130
    if len(begun) > 1:
        print("\n\n".join(map(visible, texts)), end="")
    print(flush=True)
    print(visible(_summary(engine, stamps, most)), file=sys.stderr)
    return code


def _summary(engine: Engine, stamps: Sequence[float], most: int) -> str:
    """Tokens, seconds, engine and kernels, in a line."""
    tokens, facts = len(stamps) - 1, engine.facts()
    speed = f"{tokens} tokens"
    if tokens == most:
        speed += f" (cut there: tokens={most})"
    if tokens > 1:
        seconds = stamps[-1] - stamps[1]
        speed += f", the first after {stamps[1] - stamps[0]:.3g} s, then {(tokens - 1) / seconds:.4g} a second"
    ran = "; ".join(facts["kernel"])
    return (
        f"\n{speed}\nengine {facts['engine']}, {facts['threads']} threads; cache {facts['cache']}, "
        f"{facts['cache_bytes'] / 1e6:.3g} MB; head {facts['head']}; {ran}"
    )
