"""States of unfinished loops, one safetensors file each, beside the blocks that they lead to.

<folder>/tuning-<loop>.safetensors    until the blocks are there
<folder>/tuning-facts.safetensors     how the tuning came about; it stays
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lutlab.compress.kept_blocks import KeptFiles

_FACTS = "facts"  # no loop has that name


class TuningStore(KeptFiles):
    """States of loops under a folder, one file for each name; damaged ones are set aside."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "tuning")

    def save(self, name: str, tensors: Mapping[str, torch.Tensor], facts: Any) -> None:
        """Keep a state, in the place of the one before.

        Raises:
            LutlabError: the disk is full or the folder cannot be written.
        """
        self._write(name, tensors, facts)

    def load(self, name: str) -> tuple[dict[str, torch.Tensor], Any] | None:
        """Tensors and facts of a state; None where no intact file has them.

        Raises:
            LutlabError: a state is damaged, and the folder cannot be written.
        """
        return self._intact(name)

    def forget(self) -> None:
        """Remove all states: what they led to is kept elsewhere. Facts stay."""
        for path in self.folder.glob(f"{self.kind}-*.safetensors"):
            if path != self._path(_FACTS):
                path.unlink(missing_ok=True)

    def note(self, facts: Mapping[str, Any]) -> None:
        """Write down how a tuning came about, for who evaluates its blocks later."""
        self._write(_FACTS, {}, facts)

    def facts(self) -> Mapping[str, Any] | None:
        """Noted facts; None where no intact file has them."""
        found = self._intact(_FACTS)
        return found and found[1]
