"""Train the small language models that ship with lutlab, so that nothing need be downloaded.

    python -m tools.embedded.train --data ../shared/data --work /tmp/train tokenizer
    python -m tools.embedded.train --data ../shared/data --work /tmp/train model opt-embedded-s   # llama-…, bert-…
    python -m tools.embedded.export --data ../shared/data --work /tmp/train                       # -> models/embedded/

Hidden matrices train with Muon (Jordan et al. 2024), the rest with AdamW, in bf16 autocast, on the CPU (an hour or two
for all four on two cores) or on a GPU (minutes). A killed run continues from its last checkpoint. export.py
writes fp16 safetensors, the tokenizer and MODEL_CARD.md with the loss curves and the held-out perplexities.

OPT and LLaMA learn the next token, BERT the masked ones (data/masking.py), after a first leg of next tokens: its mask
token is appended to the vocabulary of the others, and its head is computed for the chosen tokens only.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import BertConfig, LlamaConfig, OPTConfig, PreTrainedModel

from lutlab.data.masking import Vocabulary, corrupted
from lutlab.models.families import decoder_blocks, model_class
from tools.embedded import corpus

VOCABULARY = 2048
CONTEXT = 512
# ids 0, 1, 2; OPT begins a text with </s>, LLaMA and BERT with <s>
PAD, BOS, EOS = "<pad>", "<s>", "</s>"
MASK = "<mask>"  # BERT's only: the id after the shared vocabulary's
MASKING = Vocabulary(VOCABULARY + 1, begin=1, end=2, mask=VOCABULARY, special=(0, 1, 2))


@dataclass(frozen=True)
class Recipe:
    """Architecture and schedule of one model; a leg is a number of batches of `batch` windows of `context` tokens."""

    family: str
    hidden: int
    ffn: int
    legs: tuple[int, ...]
    decay: float = 0.95
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    context: int = CONTEXT
    batch: int = 16
    muon_lr: float = 0.02
    adam_lr: float = 3e-3

    @property
    def steps(self) -> int:
        """Steps of all legs."""
        return sum(self.legs)

    def config(self) -> OPTConfig | LlamaConfig | BertConfig:
        """The transformers config; head and embedding are tied, dropout is off."""
        shared = {
            "vocab_size": VOCABULARY, "hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "max_position_embeddings": self.context, "tie_word_embeddings": True,
            "pad_token_id": 0, "eos_token_id": 2,
        }  # fmt: skip
        if self.family == "opt":
            return OPTConfig(
                **shared, ffn_dim=self.ffn, word_embed_proj_dim=self.hidden, bos_token_id=2,
                dropout=0.0, attention_dropout=0.0,
            )  # fmt: skip
        if self.family == "bert":
            return BertConfig(
                **shared | {"vocab_size": MASKING.size}, intermediate_size=self.ffn, bos_token_id=1,
                hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, architectures=["BertForMaskedLM"],
            )  # fmt: skip
        return LlamaConfig(
            **shared, intermediate_size=self.ffn, num_key_value_heads=self.kv_heads, bos_token_id=1,
            rms_norm_eps=1e-5,
        )  # fmt: skip


RECIPES = {
    "opt-embedded-s": Recipe("opt", 128, 512, (1000,), decay=0.4),
    "llama-embedded-s": Recipe("llama", 128, 384, (1000,), decay=0.4),
    # learned positions take hold late: a second leg
    "opt-embedded-m": Recipe("opt", 256, 1024, (800, 450), muon_lr=0.015, adam_lr=2e-3),
    "llama-embedded-m": Recipe("llama", 256, 704, (800,)),
    # the first leg is causal: every token teaches there, in the second 15 % of them do
    "bert-embedded-s": Recipe("bert", 128, 256, (120, 330), decay=0.4, context=128, batch=64),
}


def train_tokenizer(data: Path, work: Path) -> None:
    """Byte-level BPE on the training documents; writes tokenizer.json and the token stream train.npy (uint16)."""
    documents = corpus.training_documents(data)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for texts in documents.values() for text in texts]
    tokenizer.train_from_iterator(texts, trainer)
    work.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(work / "tokenizer.json"))

    texts += documents["python-docs"] * (corpus.PYDOCS_REPEATS - 1)
    encoded = [tokenizer.encode(text).ids for text in texts]
    order = np.random.default_rng(0).permutation(len(encoded))
    stream = np.concatenate([np.array([1, *encoded[i]], dtype=np.uint16) for i in order])
    np.save(work / "train.npy", stream)
    sources = {
        name: {"documents": len(texts), "characters": sum(map(len, texts))}
        for name, texts in documents.items()
    }
    (work / "corpus.json").write_text(
        json.dumps({"tokens": len(stream), "sources": sources}, indent=1)
    )
    print(f"{VOCABULARY} entries, {len(stream):,} training tokens an epoch")


def batches(stream: np.ndarray, recipe: Recipe, start: int) -> torch.Tensor:
    """Yield [batch, context] token ids; step i draws with seed i, so a resumed run sees the same data."""
    begin = recipe.config().bos_token_id
    for step in range(start, recipe.steps):
        draw = np.random.default_rng(step)
        offsets = draw.integers(0, len(stream) - recipe.context, recipe.batch)
        ids = torch.from_numpy(
            np.stack([stream[o : o + recipe.context] for o in offsets]).astype(np.int64)
        )
        ids[ids == 1] = begin
        if recipe.family == "bert":  # every window is framed, as an evaluated one is
            ids[:, 0], ids[:, -1] = MASKING.begin, MASKING.end
        else:
            ids[::2, 0] = begin  # half the windows begin as an evaluated text does
        yield ids


def train(name: str, work: Path, device: str, dtype: torch.dtype = torch.bfloat16) -> None:
    """Train one model, its products in `dtype`; a checkpoint every 50 steps, work/<name>.pt."""
    recipe = RECIPES[name]
    stream = np.load(work / "train.npy", mmap_mode="r")
    torch.manual_seed(0)
    config = recipe.config()
    model = model_class(config).from_config(config, dtype=torch.float32).to(device).train()
    hidden = [p for p in decoder_blocks(model).parameters() if p.ndim == 2]
    chosen = {id(p) for p in hidden}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    optimizers = [
        torch.optim.Muon(hidden, lr=recipe.muon_lr, weight_decay=0.01, adjust_lr_fn="original"),
        torch.optim.AdamW(rest, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(o, lambda s: _schedule(s, recipe)) for o in optimizers
    ]
    state = {"step": 0, "curve": [], "seconds": 0.0}
    checkpoint = work / f"{name}.pt"
    parts = {"model": model, **{f"optimizer{i}": o for i, o in enumerate(optimizers)}}
    parts |= {f"scheduler{i}": s for i, s in enumerate(schedulers)}
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        state = saved.pop("state")
        for key, part in parts.items():
            part.load_state_dict(saved[key])

    began = time.monotonic() - state["seconds"]
    for step, ids in enumerate(batches(stream, recipe, state["step"]), start=state["step"]):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            logits, wanted = predictions(model, ids.to(device), step, recipe)
        loss = torch.nn.functional.cross_entropy(logits.float(), wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for part in (*optimizers, *schedulers):
            part.step()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0 or step == recipe.steps - 1:
            state["seconds"] = time.monotonic() - began
            state["curve"].append((step, round(loss.item(), 4)))
            speed = (step + 1) * recipe.batch * recipe.context / state["seconds"]
            print(f"{name} step {step} loss {loss.item():.4f} {speed:,.0f} tokens/s", flush=True)
        if step % 50 == 49 or step == recipe.steps - 1:
            state["step"] = step + 1
            torch.save(
                {"state": state, **{k: p.state_dict() for k, p in parts.items()}},
                f"{checkpoint}.tmp",
            )
            os.replace(f"{checkpoint}.tmp", checkpoint)


def predictions(
    model: PreTrainedModel, ids: torch.Tensor, step: int, recipe: Recipe
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [n, V], and the token ids [n] that they are to name: the next ones, or after BERT's first leg masked ones.

    `ids` are [batch, context]; step i masks with seed i.
    """
    if recipe.family == "bert" and step >= recipe.legs[0]:
        read, chosen = (part.to(ids.device) for part in corrupted(ids.cpu(), MASKING, step))
        hidden = model.bert(input_ids=read).last_hidden_state
        return model.cls(hidden[chosen]), ids[chosen]
    causal = {}
    if recipe.family == "bert":
        length = ids.shape[1]
        causal = {"attention_mask": ids.new_ones(1, 1, length, length, dtype=torch.bool).tril()}
    logits = model(input_ids=ids, use_cache=False, **causal).logits
    return logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()


def _schedule(step: int, recipe: Recipe) -> float:
    """Per leg: linear warm-up over 40 steps, flat, linear to zero over `decay` of the leg (warm restarts, SGDR)."""
    for leg in recipe.legs:
        if step < leg:
            return min((step + 1) / 40, 1.0, (leg - step) / (recipe.decay * leg))
        step -= leg
    return 0.0


def main() -> None:
    """Command line, see the head of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="data folder, see docs/data-layout.md"
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for the token stream and checkpoints"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--dtype",
        choices=["bfloat16", "float32"],
        default="bfloat16",
        help="of the products: float32 is the faster on a CPU without bfloat16 instructions",
    )
    parser.add_argument("stage", choices=["tokenizer", "model"])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(RECIPES)}; default all")
    arguments = parser.parse_args()
    if arguments.stage == "tokenizer":
        train_tokenizer(arguments.data, arguments.work)
    for name in arguments.names or list(RECIPES):
        if arguments.stage == "model":
            train(name, arguments.work, arguments.device, getattr(torch, arguments.dtype))


if __name__ == "__main__":
    main()
