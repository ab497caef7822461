"""A GGUF file of a LLaMA model: its tensors, each in a type of ggml, the numbers of its config, and a vocabulary."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, np, torch
from lutlab.gguf.header import types
from lutlab.gguf.names import interleaved
from lutlab.gguf.vocabulary import add_vocabulary

if TYPE_CHECKING:
    import gguf

FLOATS = {"f16": "float16", "f32": "float32"}


@dataclass(frozen=True)
class Encoded:
    """A tensor as the file has it.

    Attributes:
        values: [N, K] or [N] numbers; of a quantized type, the bytes [N, bytes of a row] uint8.
        type: name of the type, as `q4_0`, `f16`.
    """

    values: np.ndarray
    type: str


def as_floats(weight: torch.Tensor, heads: int | None = None) -> Encoded:
    """A matrix in float16 where that is exact, else in float32, a vector in float32; rows of q and k as in GGUF."""
    weight = weight.detach().float().cpu().contiguous()
    weight = weight if heads is None else interleaved(weight, heads)
    if weight.dim() == 2 and torch.equal(weight.half().float(), weight):
        return Encoded(weight.half().numpy(), "f16")
    return Encoded(weight.numpy(), "f32")


def check_llama(model: PreTrainedModel) -> None:
    """Refuse what is not written as architecture `llama`.

    Raises:
        LutlabError: another model type, no head, a bias, another activation, rotary embeddings that are not plain.
    """
    config = model.config
    if config.model_type != "llama" or model.get_output_embeddings() is None:
        raise LutlabError(
            f"GGUF files are written of LLaMA models with an output head, and this is a {type(model).__name__} of type "
            f"'{config.model_type}': keep it with lutlab.save"
        )
    rope = config.rope_parameters
    bias = next((name for name, _ in model.named_parameters() if name.endswith(".bias")), None)
    unlike = {
        f"the bias {bias}": bias,
        f"the activation {config.hidden_act}": config.hidden_act != "silu",
        f"rotary embeddings of {rope}": rope.get("rope_type", "default") != "default",
    }
    for what in (what for what, differs in unlike.items() if differs):
        raise LutlabError(
            f"this LLaMA model has {what}, and GGUF files are written of those without biases, with silu and plain "
            "rotary embeddings: keep it with lutlab.save"
        )


def write(
    config: PreTrainedConfig,
    tensors: Mapping[str, Encoded],
    path: Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    ends: Collection[int] = (),
) -> None:
    """Write a file: the numbers of the config, the tokenizer's vocabulary, and tensors.

    Args:
        config: config of the architecture.
        tensors: GGUF's name and value of every tensor.
        path: path of the new file.
        tokenizer: the model's; None: the file has no vocabulary.
        ends: tokens that end a text, the tokenizer's own among them or not.

    Raises:
        LutlabError: a tokenizer that GGUF has no place for.
        OSError: the file cannot be written.
    """
    import gguf

    with closing(gguf.GGUFWriter(path, "llama")) as writer:
        for key, value in _numbers(config):
            getattr(writer, f"add_{key}")(value)
        if tokenizer is None:
            writer.add_tokenizer_model("none")
        else:
            add_vocabulary(writer, tokenizer, config.vocab_size, ends)
        for name, tensor in tensors.items():
            _add(writer, name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def _add(writer: gguf.GGUFWriter, name: str, tensor: Encoded) -> None:
    """Add a tensor, of a type that the package gguf need not know."""
    if tensor.type in FLOATS:
        writer.add_tensor(name, tensor.values)
        return
    sizes = {kind: (number, *of_block) for number, (kind, *of_block) in types().items()}
    number, weights, size = sizes[tensor.type.upper()]
    rows, width = tensor.values.shape
    # of signed bytes the writer takes shape and number as they are given
    shape = (rows, width // size * weights)
    writer.add_tensor(name, tensor.values.view(np.int8), shape, number)  # type: ignore[arg-type] # of no enumerated type


def _numbers(config: PreTrainedConfig) -> Iterable[tuple[str, Any]]:
    """The writer's name of each key, and its value."""
    import gguf

    return (
        ("quantization_version", gguf.GGML_QUANT_VERSION),
        ("vocab_size", config.vocab_size),
        ("context_length", config.max_position_embeddings),
        ("embedding_length", config.hidden_size),
        ("block_count", config.num_hidden_layers),
        ("feed_forward_length", config.intermediate_size),
        ("head_count", config.num_attention_heads),
        ("head_count_kv", config.num_key_value_heads),
        ("key_length", config.head_dim),
        ("value_length", config.head_dim),
        ("layer_norm_rms_eps", config.rms_norm_eps),
        ("rope_dimension_count", config.head_dim),
        ("rope_freq_base", float(config.rope_parameters["rope_theta"])),
    )
