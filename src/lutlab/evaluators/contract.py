"""Contract of an evaluator: a Subject in, a Measurement out.

An evaluator is a frozen dataclass under `@register("evaluator", <name>)`; its fields are `evaluator.<name>.<field>=`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from lutlab.specs import Measurement, Subject


class Evaluator(ABC):
    """A measurement of a quantized model or of a product.

    Attributes:
        version: raised by whoever changes what the evaluator returns; part of the ids of its cells.
        of_this_machine: True for speed and memory: ids hold processor, instruction set and threads, rows run alone.
    """

    version: ClassVar[int]
    of_this_machine: ClassVar[bool] = False

    @abstractmethod
    def measure(self, subject: Subject) -> Measurement:
        """The values by metric name.

        Raises:
            LutlabError: the subject lacks what is measured; the message says what to do.
        """
