"""Inputs of golden cells (golden.py): drawn weights that are exact, a few rows of text, tiny models."""

from __future__ import annotations

from typing import Any

from lutlab.data.choices import choice_row
from lutlab.data.pairs import Pair
from lutlab.data.protocols import protocol
from lutlab.lazy import torch, transformers
from lutlab.models.load import LoadedModel, load_model
from lutlab.quantizers.contract import make_method
from lutlab.specs import ModelSpec, Text

MODEL = ModelSpec("opt-embedded-s", "embedded", "opt-embedded-s")
ENCODER = ModelSpec("bert-embedded-s", "embedded", "bert-embedded-s")
SENTENCE = (
    "the table of a kernel holds sums of eight inputs for every pattern of signs, so that a byte of the weight is read "
    "once and adds eight products; a scale for each group follows, and what remains is rounding."
)


def drawn(*shape: int, seed: int, scale: float = 2**-12) -> torch.Tensor:
    """Float32, of the bell's shape, exact: sums of four whole numbers below 2^11."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**11), 2**11, (4, *shape), generator=generator).sum(0).float() * scale


def sentences(count: int) -> tuple[str, ...]:
    """The sentence, begun at each of its words."""
    words = SENTENCE.split()
    return tuple(" ".join(words[i:] + words[:i]) for i in range(count))


def text_of(name: str) -> Text:
    """A few rows under a protocol, read from nowhere."""
    rows = sentences(12)
    if protocol(name).kind == "choices":
        rows = tuple(
            choice_row((rows[i], rows[-i]), rows[i].partition(" ")[0], i % 2) for i in range(4)
        )
    elif protocol(name).kind.endswith("pairs"):
        rows = tuple(Pair(row, rows[-i], i % 3).row() for i, row in enumerate(rows))
    return Text(name, rows, "", "golden.py")


def loaded(spec: ModelSpec = MODEL) -> LoadedModel:
    """An embedded model in float32."""
    return load_model(spec, torch.float32, "cpu", 0)


def tiny_opt() -> Any:
    """OPT of 2 blocks, hidden 32, whose weights are exact."""
    config = transformers.OPTConfig(
        vocab_size=64, hidden_size=32, word_embed_proj_dim=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=32, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return exact(transformers.OPTForCausalLM(config))


def classifier(labels: int) -> Any:
    """BERT of 2 blocks with a head for pairs, whose weights are exact."""
    config = transformers.BertConfig(
        vocab_size=2048, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_labels=labels,
    )  # fmt: skip
    return exact(transformers.BertForSequenceClassification(config))


def exact(model: Any) -> Any:
    """The model with drawn weights."""
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=seed))
    return model.eval()


def windows() -> torch.Tensor:
    """Calibration windows: token ids [4, 16]."""
    return torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(0))


def mixed(weight: torch.Tensor, **options: Any) -> Any:
    """Groups of 4 and 2 bits with outliers, of either layout."""
    method = make_method("mixed_2_4_16", outliers=0.01, **options)
    widths = torch.tensor((4, 2, 2, 2, 4, 2), dtype=torch.uint8)
    return method.round_to(weight, widths, 16)
