"""Every kind of file that is attacked; importing this imports what their readers need, before children are forked."""

from __future__ import annotations

import torch
from tests.damage import kinds_caches, kinds_kept, kinds_models, kinds_texts

torch.set_num_threads(1)  # a pool of threads does not survive a fork
KINDS = [*kinds_kept.KINDS, *kinds_models.KINDS, *kinds_texts.KINDS, *kinds_caches.KINDS]
