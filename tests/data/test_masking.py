"""Masked windows: framed, corrupted in BERT's shares, the same for the same seed; nothing special is chosen."""

import pytest
import torch
from tests.base.refusals import refused
from tests.tiny_models import word_tokenizer

from lutlab.base.specs import Text
from lutlab.data import calibration_inputs
from lutlab.data.masking import Vocabulary, corrupted, masked_stream, vocabulary_of

WORDS = tuple(" ".join(f"w{(i * j) % 90}" for j in range(30)) for i in range(1, 20))


def mask_tokenizer():
    """Ids: 0 begins, 102 ends a text, 103 is the mask."""
    tokenizer = word_tokenizer(bos=True)
    names = {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    tokenizer.add_special_tokens(names)
    return tokenizer


def test_shares_are_berts():
    ids = torch.randint(4, 1000, (200, 512), generator=torch.Generator().manual_seed(0))
    vocabulary = Vocabulary(1000, begin=1, end=2, mask=3, special=(1, 2, 3))
    before = ids.clone()
    read, chosen = corrupted(ids, vocabulary, seed=5)
    assert torch.equal(ids, before)
    assert torch.equal(read[~chosen], ids[~chosen])
    assert chosen.float().mean().item() == pytest.approx(0.15, abs=0.003)
    masked, kept = (read == 3)[chosen], (read == ids)[chosen]
    assert masked.float().mean().item() == pytest.approx(0.8, abs=0.01)
    assert kept.float().mean().item() == pytest.approx(0.1, abs=0.01)
    random = read[chosen][~masked & ~kept].float()
    assert random.mean().item() == pytest.approx(500, abs=15), "random tokens are of all ids"
    again, other = corrupted(ids, vocabulary, seed=5), corrupted(ids, vocabulary, seed=6)
    assert torch.equal(read, again[0])
    assert not torch.equal(read, other[0])


def test_windows_of_a_text_are_framed_and_a_part_is_a_part_of_the_whole():
    tokenizer = mask_tokenizer()
    ids = vocabulary_of(tokenizer)
    assert (ids.begin, ids.end, ids.mask, ids.size) == (0, 102, 103, 104)
    windows = masked_stream(Text("topics", WORDS, "", "here"), tokenizer, 16, seed=1)
    inside = tokenizer("\n\n".join(WORDS), add_special_tokens=False).input_ids
    assert windows.ids[:, 1:-1].flatten().tolist() == inside[: len(inside) // 14 * 14]
    assert (windows.ids[:, 0] == 0).all()
    assert (windows.ids[:, -1] == 102).all()
    assert not windows.chosen[:, [0, -1]].any()
    part = masked_stream(Text("topics", WORDS, "", "here", limit=3), tokenizer, 16, seed=1)
    assert torch.equal(part.read, windows.read[:3])
    assert torch.equal(part.chosen, windows.chosen[:3])


def test_calibration_reads_masks_as_the_evaluation_does():
    text = Text("wikitext2-train", WORDS, "", "here")
    ids = calibration_inputs("masked_lm", text, mask_tokenizer(), samples=40, seqlen=18, seed=0)
    assert ids.shape == (40, 18)
    assert (ids[:, 0] == 0).all()
    assert (ids == 103).float().mean().item() == pytest.approx(0.12 * 16 / 18, abs=0.03)


def test_a_tokenizer_without_a_mask_is_named():
    refused("for begin, end, mask .*model's own tokenizer", vocabulary_of, word_tokenizer())
