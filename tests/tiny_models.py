"""Models and tokenizers of a few kilobytes made from configs, so that no test needs a download or ../shared."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
)

from lutlab.base.specs import ModelRun, ModelSpec

# A row for a Subject whose evaluator does not look at it.
RUN = ModelRun(ModelSpec("tiny", "folder", "tiny"), "rtn", 4, 32)


def word_tokenizer(bos: bool = False) -> PreTrainedTokenizerFast:
    """Ids: <s> 0, <unk> 1, w0 2, w1 3, … w99 101; `bos` sets <s> before a text."""
    vocabulary = {"<s>": 0, "<unk>": 1} | {f"w{i}": i + 2 for i in range(100)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            "<s> $A", special_tokens=[("<s>", 0)]
        )
    special = {"bos_token": "<s>", "unk_token": "<unk>", "pad_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def byte_tokenizer(bos: bool = True) -> PreTrainedTokenizerFast:
    """Byte-level BPE of 3 merges: <s> 0, 256 bytes, 'th', ' a', ' e'; any text, several tokens a word."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("Ġ", "a"), ("Ġ", "e")]
    vocabulary = {token: i for i, token in enumerate(["<s>", *alphabet, *map("".join, merges)])}
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            "<s> $A", special_tokens=[("<s>", 0)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="<s>")


def tiny_opt(vocabulary: int = 260, context: int = 64) -> OPTForCausalLM:
    """Random OPT of 2 layers, hidden 32, dropout on as configs have it."""
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=vocabulary, hidden_size=32, word_embed_proj_dim=32, ffn_dim=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=context, bos_token_id=0, eos_token_id=0, pad_token_id=0,
        init_std=0.3,
    )  # fmt: skip
    return OPTForCausalLM(config)


def tiny_llama(vocabulary: int = 260, context: int = 64) -> LlamaForCausalLM:
    """Random LLaMA of 2 layers, hidden 32."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=context, bos_token_id=0, eos_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config)
