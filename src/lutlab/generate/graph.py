"""The engine of a GPU: transformers' modules over slots of fixed place, one CUDA graph a step, no Python in it.

    a step     k, v -> slot position[b]; attention over slots 0 .. bucket-1, those after position[b] masked; logits;
               ids = argmax; position += 1                                          all by numbers in device memory
    bucket     the least of 128, 256, 512, ... that holds every row; each has a graph, captured when it is first used

A graph reads a bucket of slots and not all of them, which at 2048 tokens of OPT-175B would be 9.7 GB a step; layers
that read the same input are one launch (`fuse`). Prompts are read by the model's own forward pass, padded on
the right, where what is padded is in no one's past.

Replayed graphs run no Python: `greedy` decodes without waiting for the GPU. Elsewhere than on a GPU the same step runs
without graphs, which is how it is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import torch

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, transformers
from lutlab.base.registry import register
from lutlab.formats.cut import joined
from lutlab.generate.architecture import GROWING_ROPES
from lutlab.generate.contract import Engine
from lutlab.kernels.dispatch import Dequantized, prepare
from lutlab.kernels.joined import RowsOf, Whole
from lutlab.models import fits
from lutlab.models.families import decoder_blocks, family_of, forward_with_cache
from lutlab.modules import QuantLinear

BUCKETS = tuple(2**n for n in range(7, 20))  # slots that a graph's attention reads
WARM_UP = 3  # steps before a capture: they compile, load and allocate
ATTENTIONS = ("sdpa", "eager")

KeysValues = list[tuple[torch.Tensor, torch.Tensor]]  # of each layer, [B, heads, T, d]
Run = Callable[[], None]
Capture = Callable[[Run, Run], Run]  # a step, and what undoes it -> its replay


class Slots:
    """Keys and values of all layers, in the place of transformers' Cache: all that attention asks of it in a step.

    Slot t of row b holds row b's token t, so that rows of any lengths stand beside each other, and any row can be
    rewound.

    Attributes:
        kept: keys and values of each layer, [B, heads, length, d] each.
        position: [B] int64, the slot that a row writes next.
        bucket: slots that attention reads.
    """

    def __init__(self, like: KeysValues, batch: int, length: int) -> None:
        """like: keys and values of each layer, [1, heads, any, d]."""
        self.kept = [
            # zeros: what a mask hides is multiplied by 0 all the same, and memory may hold NaN
            tuple(t.new_zeros(batch, t.shape[1], length, t.shape[3]) for t in layer)
            for layer in like
        ]
        self.position = torch.zeros(batch, dtype=torch.int64, device=self.kept[0][0].device)
        self.bucket = length

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the token's [B, heads, 1, d] into its slots, and return the bucket."""
        for slots, new in zip(self.kept[layer], (keys, values), strict=True):
            slots.scatter_(2, self.position.view(-1, 1, 1, 1).expand_as(new), new)
        all_keys, all_values = self.kept[layer]
        return all_keys[:, :, : self.bucket], all_values[:, :, : self.bucket]

    def get_seq_length(self, layer: int = 0) -> int:
        """Nothing is derived of it where positions and mask are given."""
        return 0

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """[B, 1, 1, bucket]: 0 for slots that a row's token sees, the least number of a dtype for the others."""
        slot, now = torch.arange(self.bucket, device=self.position.device), self.position[:, None]
        seen = slot <= now
        if window is not None:
            seen &= slot > now - window
        hidden = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        return hidden.masked_fill_(~seen, torch.finfo(dtype).min)[:, None, None]

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return sum(t.nbytes for layer in self.kept for t in layer)


class CudaGraphs:
    """Captures steps on a GPU. The graphs share memory: one is replayed at a time, and what is kept lies outside."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run, undo: Run) -> Run:
        """The replay of `run`, which has run and been undone before, on another stream, as capturing asks for."""
        current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                run()
                undo()
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        return graph.replay


def no_graph(run: Run, undo: Run) -> Run:
    """The step itself in the place of its graph."""
    return run


@register("engine", "cuda_graph")
class GraphStep(Engine):
    """Decodes by one graph a step. It keeps the layers' executions: a layer that is repacked needs a new engine.

    Args of __init__ beside an engine's:
        capture: makes the replay of a step; None: CUDA graphs on a GPU, elsewhere the step itself.

    Raises:
        fits.TooLargeError: the cache does not fit into what the device has free beside the model.
    """

    devices: ClassVar[tuple[str, ...]] = ("cuda",)

    def __init__(
        self,
        model: PreTrainedModel,
        batch: int,
        length: int,
        cache: str = "",
        capture: Capture | None = None,
    ) -> None:
        super().__init__(model, batch, length)
        on_gpu = model.device.type == "cuda"
        self._capture = capture or (CudaGraphs() if on_gpu else no_graph)
        self._replays: dict[int, Run] = {}
        self._window = model.config.sliding_window if model.config.model_type == "mistral" else None
        self._apart = fuse(model, batch, model.dtype)
        like = self._one_token()
        needed = batch * length * sum(t.nbytes for layer in like for t in layer)
        fits.check(f"a cache of {batch} x {length} tokens", {"cache": needed}, str(model.device))
        with torch.inference_mode(False):  # an engine outlives the block it is made in
            self._slots = Slots(like, batch, length)
            self._ids = torch.zeros(batch, 1, dtype=torch.int64, device=model.device)
            self._logits = torch.zeros(batch, self.vocabulary, device=model.device)

    @classmethod
    def obstacle(cls, model: PreTrainedModel, cache: str) -> str:
        """Reason for not decoding a model: its device, family, attention or rotations, or the cache's dtype."""
        config = model.config
        rope = config.to_dict().get("rope_parameters") or {}
        if model.device.type != "cuda":
            return f"the model is on {model.device}, and CUDA graphs need a GPU"
        if len({parameter.device for parameter in model.parameters()}) > 1:
            return "the model is spread over several devices, and a graph is of one"
        known = [name for name, family in registry.classes("family").items() if family.graphs]
        if config.model_type not in known:
            return f"a graph decodes {', '.join(known)}, and not '{config.model_type}'"
        if config._attn_implementation not in ATTENTIONS:
            return f"attention '{config._attn_implementation}' takes no mask of slots: set {' or '.join(ATTENTIONS)}"
        if rope.get("rope_type") in GROWING_ROPES:  # on the host, by the length
            return f"rope_type '{rope['rope_type']}' chooses its frequencies on the host, by the length of the text"
        return super().obstacle(model, cache)

    # ---- Engine ----

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Read all prompts in one pass, padded on the right."""
        self.check_prompts(prompts)
        lengths = torch.tensor([len(ids) for ids in prompts])
        padded = torch.nn.utils.rnn.pad_sequence(list(prompts), batch_first=True)
        last, which = torch.unique(lengths - 1, return_inverse=True)
        logits, layers = self._read(padded, last)
        for layer, new in zip(self._slots.kept, layers, strict=True):
            for slots, of_prompt in zip(layer, new, strict=True):
                slots[:, :, : padded.shape[1]] = of_prompt
        self._go_to(lengths)
        return torch.stack(
            [row[at] for row, at in zip(logits, which.tolist(), strict=True)]
        ).float()

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Replay the graph of the bucket."""
        self.check_step(ids)
        self._ids.copy_(ids[:, None])
        self._replay()
        return self._logits.clone()

    def greedy(self, ids: torch.Tensor, tokens: int) -> torch.Tensor:
        """The GPU chooses, and is not waited for. The tokens are on the model's device.

        Raises:
            LutlabError: ids are not [B] of the vocabulary, or the cache has no room for so many tokens, which is found
                before the first one is added.
        """
        if not tokens:
            return self._ids.new_empty(self.batch, 0)
        self.check_step(ids)
        if (room := self.length - max(self.positions)) < tokens:
            raise LutlabError(
                f"{tokens} tokens, and the cache has room for {room}: decode fewer, or make it longer (length=)"
            )
        self._ids.copy_(ids[:, None])
        chosen = self._ids.new_empty(self.batch, tokens)
        for at in range(tokens):
            self._replay()
            chosen[:, at] = self._ids[:, 0]
        return chosen

    def rewind(self, tokens: int = 0) -> None:
        """Only the positions change: what is in the slots behind them is masked."""
        self.check_rewind(tokens)
        self._go_to(torch.full((self.batch,), tokens))

    def bytes_read(self, context: int) -> dict[str, int]:
        """Of the cache the whole bucket."""
        cache = self._slots.nbytes * self._bucket(context) // self.length
        return self.modules_read() | {"cache": cache}

    def facts(self) -> dict[str, Any]:
        """`buckets`: those whose step has been captured; `not_joined`: why layers that read the same input are
        products of their own, where they could be one.
        """
        layers = [m for m in self.model.modules() if isinstance(m, QuantLinear)]
        kernels = {layer.describe(self.batch, self.model.dtype) for layer in layers}
        name = "cuda_graph, without graphs" if self._capture is no_graph else "cuda_graph"
        facts = self.modules_facts(name, sorted(kernels) or ["torch matmul"], self._slots.nbytes)
        facts["buckets"] = sorted(self._replays)
        return facts | ({"not_joined": self._apart} if self._apart else {})

    # ---- a step ----

    def _replay(self) -> None:
        """One token more in every row."""
        bucket = self._bucket(max(self.positions) + 1)
        if bucket not in self._replays:
            self._replays[bucket] = self._captured(bucket)
        self._replays[bucket]()
        self.positions = [at + 1 for at in self.positions]

    def _captured(self, bucket: int) -> Run:
        """The replay of a step over a bucket; ids and positions are what they were before."""
        slots, before = self._slots, (self._ids.clone(), self._slots.position.clone())

        @torch.inference_mode()
        def run() -> None:
            slots.bucket = bucket
            out = forward_with_cache(
                self.model,
                slots,
                input_ids=self._ids,
                position_ids=slots.position[:, None],
                attention_mask=slots.mask(self._window, self.model.dtype),
            )
            self._logits.copy_(out.logits[:, -1])
            self._ids.copy_(self._logits.argmax(-1, keepdim=True))
            slots.position.add_(1)

        def undo() -> None:
            self._ids.copy_(before[0])
            slots.position.copy_(before[1])

        return self._capture(run, undo)

    def _bucket(self, context: int) -> int:
        """Slots that the attention of a step reads, whose rows have so many tokens with it."""
        return min(self.length, next(b for b in (*BUCKETS, self.length) if b >= context))

    def _go_to(self, positions: torch.Tensor) -> None:
        self.positions = positions.tolist()
        self._slots.position.copy_(positions)

    # ---- prompts ----

    def _read(self, ids: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, KeysValues]:
        """Logits [B, len(at), V] after some tokens of ids [B, T]; keys and values of each layer, [B, heads, T, d]."""
        device = self.model.device
        # without a config: layers whose window slides keep all tokens too
        cache = transformers.DynamicCache()
        out = forward_with_cache(
            self.model,
            cache,
            input_ids=ids.to(device),
            position_ids=torch.arange(ids.shape[1], device=device).expand_as(ids),
            logits_to_keep=at.to(device),
        )
        layers: list[Any] = cache.layers  # full after a pass, which their types do not say
        return out.logits, [(layer.keys, layer.values) for layer in layers]

    @torch.inference_mode()
    def _one_token(self) -> KeysValues:
        """Keys and values of a token: their shapes and dtypes, as the model has them."""
        zero = torch.zeros(1, 1, dtype=torch.int64)
        return self._read(zero, zero[0])[1]


# ---- layers that read the same input ----


def fuse(model: PreTrainedModel, rows: int, dtype: torch.dtype) -> list[str]:
    """Let q, k and v, and gate and up, of every block multiply in one launch; the layers stay what they are.

    Their weights are held once, by the joined one; `packed`, `state_dict` and `.to()` give each layer its own again.

    Args:
        model: quantized; of what is not, nothing is joined.
        rows: number of rows of x to be ready for.
        dtype: dtype of x.

    Returns:
        Why some quantized layers are not joined, each reason once.
    """
    reasons: dict[str, None] = {}
    shared = [group.layers for group in family_of(model.config).inputs if len(group.layers) > 1]
    for block in decoder_blocks(model):
        for names in shared:
            modules = [block.get_submodule(name) for name in names]
            layers = [module for module in modules if isinstance(module, QuantLinear)]
            if len(layers) == len(names):
                try:
                    _join(layers, rows, dtype)
                except LutlabError as error:
                    reasons[str(error)] = None
    return list(reasons)


def _join(layers: list[QuantLinear], rows: int, dtype: torch.dtype) -> None:
    """Give layers one product. Raises LutlabError: their weights cannot be joined, or no kernel takes the whole."""
    if all(isinstance(layer.execution, RowsOf) for layer in layers):
        return
    whole = joined([layer.packed for layer in layers])
    device = next(b.device for b in whole.buffers.values() if b is not None)
    execution = prepare(whole, device, rows, dtype)
    if isinstance(execution, Dequantized):
        raise LutlabError(f"no kernel: {execution.why}")
    ends = accumulate((layer.out_features for layer in layers), initial=0)
    together = Whole(execution, tuple(range(*span) for span in pairwise(ends)))
    for layer, part in zip(layers, together.parts(), strict=True):
        layer.adopt(part)
