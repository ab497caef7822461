"""Every kind of file that is attacked; importing this imports what their readers need, before children are forked."""

from __future__ import annotations

from tests.damage import kinds_caches, kinds_experiment, kinds_kept, kinds_models, kinds_texts

MODULES = (kinds_kept, kinds_models, kinds_texts, kinds_caches, kinds_experiment)
KINDS = [kind for module in MODULES for kind in module.KINDS]
