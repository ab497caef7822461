"""`lutlab chat`: a conversation with a model, quantized already or now.

    lutlab chat three                                      a folder that `lutlab quantize` wrote
    lutlab chat smollm2-135m method=gptq q=4 g=64          quantized now, and kept for the next time

/exit ends the conversation, /new begins another one, Ctrl-C ends an answer and keeps what there is of it. What is not
in the list below is a key of a sweep (--help).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from lutlab.base.escapes import visible
from lutlab.base.lazy import PreTrainedTokenizerBase
from lutlab.experiment.run.prepared import Planned
from lutlab.experiment.run.progress import shown
from lutlab.experiment.run.words import command
from lutlab.generate.contract import Engine

_LONGEST = 4096  # tokens of a cache, where the model's context is longer
_WORDS: dict[str, tuple[Any, str]] = {
    "tokens": (512, "most tokens of an answer."),
    "temperature": (0.0, "0 takes the likeliest token; above, drawn with seed=."),
    "top_k": (0, "number of the likeliest tokens to draw from; 0: all."),
    "top_p": (1.0, "probability that the likeliest tokens to draw from have together."),
    "system": ("", "message of the system, before the conversation."),
    "raw": (False, "true: no chat template; each line continues the text so far."),
    "length": (0, f"tokens of a conversation; 0: the model's context, at most {_LONGEST}."),
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """The command; returns the exit code: 0, 2 for a mistake."""
    return command("chat", __doc__, _WORDS, _chat, arguments)


def _chat(words: dict[str, Any], rest: list[str]) -> int:
    from lutlab.generate import context_of, engine
    from lutlab.generate.text import Chooser, encoded

    planned = Planned.from_line(rest, _WORDS)
    draws = {name: words[name] for name in ("temperature", "top_k", "top_p")}
    draws["seed"] = planned.settings.seed
    Chooser(**draws)  # refused before a model is quantized, which may take hours
    if not words["raw"]:
        encoded(planned.tokenizer, ["Hello"], chat=True)
    with shown():
        model = planned.prepared().model
    if planned.job.quantized:
        print(f"quantized blocks are kept in {planned.job.quantized}", file=sys.stderr)
    length = words["length"] or min(_LONGEST, context_of(model)[0])
    talk = Conversation(engine(model, 1, length), planned.tokenizer, words, draws)
    for line in _lines():
        talk.answer(line)
    return 0


def _lines() -> Iterator[str]:
    """What the user types, up to /exit or the end of the input."""
    typed = sys.stdin.isatty()
    while True:
        try:
            line = input("> " if typed else "")
        except EOFError:
            return
        if line.strip() == "/exit":
            return
        if line.strip():
            yield line


class Conversation:
    """Messages so far, and who answers them.

    Args:
        engine: engine of one row, whose cache is as long as a conversation may become.
        tokenizer: the model's.
        words: values of the words of the command.
        draws: arguments of `stream` that say how tokens are chosen.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: PreTrainedTokenizerBase,
        words: dict[str, Any],
        draws: dict[str, Any],
    ) -> None:
        self.engine, self.tokenizer, self.draws = engine, tokenizer, draws
        self.tokens, self.raw, self.system = words["tokens"], words["raw"], words["system"]
        self.text = ""  # of raw=true
        self.messages: list[dict[str, str]] = []
        self.begin()

    def begin(self) -> None:
        """Forget the messages."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        self.text, self.messages = self.system, system

    def answer(self, line: str) -> None:
        """Print the answer to a line as it grows, and keep both; Ctrl-C ends it."""
        from lutlab.generate.text import encoded, stream

        if line.strip() == "/new":
            self.begin()
            return
        prompt: Any = self.text + line
        if not self.raw:
            prompt = [*self.messages, {"role": "user", "content": line}]
        room = self.engine.length - len(encoded(self.tokenizer, [prompt], not self.raw)[0]) + 1
        if room < 1:
            print(
                f"the conversation fills {self.engine.length} tokens: /new begins another",
                file=sys.stderr,
            )
            return
        tokens = min(self.tokens, room)
        pieces = stream(
            self.engine, self.tokenizer, [prompt], tokens, chat=not self.raw, **self.draws
        )
        reply, stamps = "", []
        try:
            for piece in pieces:
                stamps.append(time.perf_counter())
                reply += piece.text
                print(visible(piece.text), end="", flush=True)
        except KeyboardInterrupt:
            print(" …", end="")
        print(flush=True)
        print(speed(stamps, tokens), file=sys.stderr)
        if self.raw:
            self.text = prompt + reply
        else:
            self.messages = [*prompt, {"role": "assistant", "content": reply}]


def speed(stamps: Sequence[float], most: int) -> str:
    """Number of tokens, their pace, and whether the limit cut the text, by the times at which they came."""
    rate = ""
    if len(stamps) > 1:
        rate = f", {(len(stamps) - 1) / (stamps[-1] - stamps[0]):.4g} a second"
    cut = f"; cut at tokens={most}" if len(stamps) == most else ""
    return f"[{len(stamps)} tokens{rate}{cut}]"
