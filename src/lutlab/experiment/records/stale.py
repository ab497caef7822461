"""Records that this code would not make: components, libraries or kernels that moved since they were measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lutlab import registry
from lutlab.errors import LutlabError
from lutlab.experiment.store.components import kernels_fingerprint, version
from lutlab.experiment.store.provenance import libraries
from lutlab.experiment.store.record import Record


def moved(record: Record) -> list[str]:
    """Reasons why a run of today names this record's cell otherwise; none: it is found again.

    `evaluator/ppl 1 -> 2`, `torch 2.13 -> 2.14`, and of a speed `kernels of cpu`. Models, texts and machines are not
    looked at: only code and libraries.
    """
    identity = record.provenance.get("identity")
    if identity is None:
        return ["no identity: it was measured before ids were kept"]
    return list(_moved(record, identity))


def _moved(record: Record, identity: dict[str, Any]) -> Iterator[str]:
    for name, then in identity["components"].items():
        now = _version(name)
        if str(then).partition("+")[0] != str(now):  # a user's class has its fingerprint after it
            yield f"{name} {then} -> {now if now is not None else 'gone'}"
    evaluator = registry.classes("evaluator").get(record.evaluation["evaluator"])
    today = libraries(*(evaluator.libraries if evaluator else ()))
    for name, then in identity["libraries"].items():
        if today.get(name) != then:
            yield f"{name} {then} -> {today.get(name, 'not asked for')}"
    if "speed" in identity:
        device = record.run["device"].partition(":")[0]
        if identity["speed"]["kernels"] != kernels_fingerprint(device):
            yield f"kernels of {device}"


def _version(name: str) -> int | None:
    """The version of a component; None where this lutlab does not have it."""
    try:
        return version(name)
    except (LutlabError, KeyError):
        return None
