"""Tokens a second of llama.cpp on the same model in a type of ggml of its width: the peer of QIGen Figure 4.

    tokens_per_s = tokens / median over the repeats of the seconds that decoding them took

llama.cpp is no dependency of lutlab: the column is measured where llama-cpp-python and gguf are installed, and says so
where they are not. All linear layers have one type, the head and the key-value cache the formats that are named
(peers/llama_cpp/gguf_model.py); the facts have all three. Decoding is that of generation.py, with as many threads, and
is checked before it is timed.

llama.cpp multiplies the file's weights, which are the row's own where the type holds its codes exactly, else rounded
again, by activations that it rounds to 8 bits. The check has transformers multiply by the
weights that the file holds: llama.cpp's logits may be at most twice as far from its logits as rounding the activations
to 8 bits takes them, and what float16 keys and values add.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, np, torch
from lutlab.base.limits import Count
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, ModelRun, Subject
from lutlab.evaluators import evaluation_mode
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.evaluators.depth import scaled_to_all_layers
from lutlab.evaluators.generation import check_context
from lutlab.gguf import file as gguf_file
from lutlab.gguf.file import FLOATS, Encoded
from lutlab.gguf.names import parts
from lutlab.peers.llama_cpp import LlamaCpp as Peer
from lutlab.peers.llama_cpp import gguf_model
from lutlab.peers.llama_cpp.gguf_model import Decoder

Type = Literal["q2_K", "q3_K", "q4_0", "q5_0", "q6_K", "q8_0", "f16", "f32"]  # as gguf_model.BITS
CHECKED = 8  # tokens whose logits are checked
_ROOM = 2.0
_FLOAT16 = 2.0**-10  # of float16 keys and values, and of sums in another order


@register("evaluator", "llama_cpp")
@dataclass(frozen=True)
class LlamaCpp(Evaluator):
    """Metric `tokens_per_s`, higher is better; samples are the seconds of each repeat.

    Attributes:
        tokens: number of tokens to decode.
        repeats: number of timed repeats, after an untimed one.
        type: ggml's type of all linear layers; empty: the narrowest that has the row's bits (q4_0 at q=4, q3_K at 3,
            q2_K at 2). Types that end in K need layers whose inputs are a multiple of 256. Layers of method=ggml keep
            the types that they are stored in, and those beside them that it leaves out are float16.
        head: type of the output head: `f16`, llama.cpp's own default `q6_K`, or `f32`.
        cache: dtype of cached keys and values: `f16`, llama.cpp's default, or `f32`.
        flash: attention by llama.cpp's fused kernel, its own default. llama-embedded-m on AVX2: faster than the plain
            one, llama-cpp-python's default, up to 128 tokens, slower behind them, and 3 times slower with cache=f32.
    """

    version: ClassVar[int] = 2
    task: ClassVar[str] = "causal_lm"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("tokens_per_s", "tokens/s", "llama.cpp", lower_is_better=False),
    )
    of_this_machine: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("llama_cpp_python",)
    tokens: Count = 128
    repeats: Count = 5
    type: Literal["", Type] = ""
    head: Type = "f16"
    cache: Literal["f16", "f32"] = "f16"
    flash: bool = False

    @classmethod
    def obstacle(cls, run: ModelRun) -> str:
        """The peers that are not installed; empty where all are."""
        return Peer.lacking()

    def _kind(self, run: ModelRun) -> str:
        """Type of the linear layers that have none of their own."""
        typed = registry.lookup("method", run.method).format == "ggml"
        return self.type or ("f16" if typed else gguf_model.type_for(run.q))

    @scaled_to_all_layers
    def measure(self, subject: Subject) -> Measurement:
        """Needs no text and no tokenizer; disk for the packed model in the temporary folder (TMPDIR)."""
        if absent := Peer.lacking():
            raise LutlabError(absent)
        model = subject.model
        check_context(model, self.tokens)
        first = getattr(model.config, "bos_token_id", None) or 0
        threads = torch.get_num_threads()
        kind = self._kind(subject.run)
        with tempfile.TemporaryDirectory(prefix="lutlab-") as folder:
            path = Path(folder) / "model.gguf"
            encoded = gguf_model.encode(model, kind, self.head, threads)
            gguf_file.write(model.config, encoded, path)
            with Decoder(path, self.tokens, threads, self.cache, self.flash) as decoder:
                checked = check(model, encoded, decoder, first)
                kinds = _kinds(encoded)
                del encoded
                seconds = [decoder.seconds(first, self.tokens) for _ in range(1 + self.repeats)][1:]
        facts = {
            "tokens": self.tokens,
            "prompt_tokens": 1,
            "kernel": [name(kinds)],
            "head": self.head,
            "cache": self.cache,
            "attention": "flash" if self.flash else "plain",
            "threads": threads,
            **checked,
        }
        values = {"tokens_per_s": self.tokens / statistics.median(seconds)}
        return Measurement(values=values, n=self.repeats, samples=tuple(seconds), facts=facts)


def _kinds(encoded: Mapping[str, Encoded]) -> str:
    """Types of the linear layers of a file, each once."""
    of_layers = (t for name, t in encoded.items() if name.startswith("blk") and t.values.ndim == 2)
    return " and ".join(sorted({tensor.type for tensor in of_layers}))


def name(kind: str) -> str:
    """A type's kernels for a record, with the version."""
    return f"llama.cpp {kind}, llama-cpp-python {Peer.version()}"


def check(
    model: PreTrainedModel, encoded: Mapping[str, Encoded], decoder: Decoder, first: int
) -> dict[str, float]:
    """Raises LutlabError unless llama.cpp computes the model of the file; how far rounding took it, for a record.

    `logits_error`: |its logits - those of exact activations| / |those|, both with the weights of the file;
    `logits_error_expected`: the same of transformers with activations of 8 bits; `logits_cosine`: its with the model's.
    """
    decoder.rewind()
    ids, seen = [first], []
    for _ in range(CHECKED):
        seen.append(decoder.step(ids[-1]).copy())
        ids.append(int(seen[-1].argmax()))
    peer = torch.from_numpy(np.stack(seen)).double()
    tokens = torch.tensor([ids[:-1]], device=model.device)
    with evaluation_mode(model):
        ours = model(input_ids=tokens, use_cache=False).logits[0].double().cpu()
        with _multiplying(model, encoded):
            both = model(input_ids=tokens.repeat(2, 1), use_cache=False).logits.double().cpu()
    exact, coarse = both
    error, expected = ((logits - exact).norm() / exact.norm() for logits in (peer, coarse))
    if not error <= _ROOM * expected + _FLOAT16:
        raise LutlabError(
            f"llama.cpp's logits are {error:.1e} from those of its own weights, and rounding activations to 8 bits "
            f"explains {expected:.1e}: it computes something else; its speed would say nothing"
        )
    cosine = torch.nn.functional.cosine_similarity(ours.flatten(), peer.flatten(), dim=0)
    facts = {"logits_error": error, "logits_error_expected": expected, "logits_cosine": cosine}
    return {name: float(value) for name, value in facts.items()}


@contextmanager
def _multiplying(model: PreTrainedModel, encoded: Mapping[str, Encoded]) -> Iterator[None]:
    """Every product inside is by the weights of the file, the second text's with activations that are rounded."""
    with ExitStack() as stack:
        for name, module, heads in _products(model):
            hook = functools.partial(_product, encoded[name], heads)
            stack.callback(module.register_forward_hook(hook).remove)
        yield


def _products(model: PreTrainedModel) -> Iterator[tuple[str, torch.nn.Module, int | None]]:
    """GGUF's name, module and heads of every product."""
    for name, _, module, heads in parts(model):
        if not name.endswith("norm.weight") and name != "token_embd.weight":
            yield name, module, heads


def _product(
    tensor: Encoded, heads: int | None, module: torch.nn.Module, args: Any, output: torch.Tensor
) -> torch.Tensor:
    """[2, T, K] -> [2, T, N] by a weight of the file, in the place of the module's output."""
    (x,) = args
    weight = gguf_model.rounded(tensor, heads).to(x)
    return torch.stack((x[0], _as_rounded(x[1], tensor.type))) @ weight.t()


def _as_rounded(x: torch.Tensor, kind: str) -> torch.Tensor:
    """Activations as ggml rounds them for a type: to 8 bits, a scale for each block of the type's; f16: to float16."""
    if kind in FLOATS:
        return x.half().to(x) if kind == "f16" else x
    blocks = x.unflatten(-1, (-1, gguf_model.block_of(kind)))
    step = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return ((blocks / step).round() * step).flatten(-2)
