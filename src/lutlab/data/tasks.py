"""Task definitions of lm-evaluation-harness, read as YAML without importing it (its own index of them takes 40 s).

    DEFINITIONS["winogrande"]  -> winogrande/default.yaml, over rows of ours
    definition("boolq")        -> super_glue/boolq/default.yaml, over rows that lm-eval itself fetches from the hub

Definitions are those of the installed lm-eval and of nobody else: no option names another file or folder. Here they are
data, a `!function` is its name, and no other tag is known; lm-eval itself imports its functions when it measures,
and is trusted as far as any package that was installed.

A text of source `lm_eval` has no rows here: its hash is that of the definition, and its name that of the task. What was
read is hashed in the record (evaluators/harness).
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.specs import Text
from lutlab.data.protocols import PROTOCOLS

SOURCE = "lm_eval"
# protocol -> lm-eval's definition that reads its rows, below lm_eval/tasks
DEFINITIONS = {
    "lambada": "lambada/lambada_openai.yaml",
    "lambada-standard": "lambada/lambada_standard.yaml",
    "passages": "lambada/lambada_openai.yaml",
    "piqa": "piqa/piqa.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "winogrande": "winogrande/default.yaml",
    "arc-easy": "arc/arc_easy.yaml",
    "arc-challenge": "arc/arc_challenge.yaml",
}
# our own, in which the ending is the same after every context, as in WinoGrande
CONTINUATIONS = {
    "task": "continuations",
    "output_type": "multiple_choice",
    "doc_to_text": "gold",
    "doc_to_choice": "contexts",
    "doc_to_target": "ending",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    "metadata": {"version": 1.0},
}
# lm-eval's name of a task -> the protocol whose rows it reads
_PROTOCOLS = {
    "lambada_openai": "lambada", "lambada_standard": "lambada-standard", "arc_easy": "arc-easy",
    "arc_challenge": "arc-challenge",
}  # fmt: skip
# metrics of a task that lists none, by what it asks of a model (lm_eval/api/registry.py)
_USUAL_METRICS = {
    "loglikelihood": ("perplexity", "acc"),
    "multiple_choice": ("acc", "acc_norm"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
    "generate_until": ("exact_match",),
}
_NAMED = re.compile(rb"""^["']?(task|group)["']?:[ \t]*["']?([^\s"'#]+)""", re.MULTILINE)


def protocol_of(name: str) -> str:
    """The protocol of ours with the rows of a task, named as lm-eval names it; the name itself where there is none."""
    return _PROTOCOLS.get(name, name)


def has_own_rows(name: str) -> bool:
    """Whether lutlab reads a text's rows, so that lm-eval fetches none."""
    return name in DEFINITIONS or name == CONTINUATIONS["task"]


def metrics_of(name: str) -> tuple[str, ...]:
    """Metrics of a task, in its definition's order; name: a protocol's or lm-eval's."""
    if name == CONTINUATIONS["task"]:
        return _metrics(CONTINUATIONS)
    path = folder() / DEFINITIONS[name] if name in DEFINITIONS else definition(name)
    return _metrics(_read(path)[0])


def dataset_of(name: str) -> str:
    """The hub's data set of a task whose rows lm-eval fetches."""
    return str(_read(definition(name))[0].get("dataset_path"))


def text_of_task(name: str, limit: int | None) -> Text:
    """A task whose rows lm-eval fetches, as a text without rows; raises LutlabError where `definition` does."""
    origin = (
        f"lm-eval {importlib.metadata.version('lm-eval')}, its own rows of '{dataset_of(name)}'"
    )
    return Text(name, (), _read(definition(name))[1].hexdigest(), origin, limit)


def definition(name: str) -> Path:
    """The file of the definition of a task of lm-eval.

    Raises:
        LutlabError: lm-eval is not installed, has no such task, or a group of tasks of that name.
    """
    tasks, groups = _index()
    if name in groups:
        raise LutlabError(
            f"'{name}' is a group of lm-eval's tasks, not one of them: name its tasks, as {_below(name)}"
        )
    if name not in tasks:
        close = difflib.get_close_matches(name, tasks, n=5, cutoff=0.5)
        ours = [p for p, rule in PROTOCOLS.items() if rule.kind in ("choices", "examples")]
        raise LutlabError(f"lm-eval has no task '{name}': {nearest(name, close or ours)}")
    return tasks[name]


def folder() -> Path:
    """The folder of lm-eval's definitions.

    Raises:
        LutlabError: lm-eval is not installed.
    """
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        raise LutlabError(MISSING)
    return Path(spec.submodule_search_locations[0]) / "tasks"


MISSING = "lm-eval is not installed, which measures tasks: pip install 'lm-eval>=0.4.13,<0.5'"


@functools.cache
def _index() -> tuple[dict[str, Path], dict[str, Path]]:
    """The files of all tasks and of all groups by name: 14,000 files, a second."""
    tasks: dict[str, Path] = {}
    groups: dict[str, Path] = {}
    for path in sorted(folder().rglob("*.yaml")):
        for kind, name in _NAMED.findall(path.read_bytes()):
            (tasks if kind == b"task" else groups).setdefault(name.decode(), path)
    return tasks, groups


def _below(group: str) -> str:
    tasks, groups = _index()
    inside = [n for n, path in tasks.items() if path.is_relative_to(groups[group].parent)]
    return ", ".join(inside[:5]) or "its YAML lists them"


def _metrics(config: Mapping[str, Any]) -> tuple[str, ...]:
    listed = config.get("metric_list")
    if listed is None:
        return _USUAL_METRICS.get(config.get("output_type", ""), ())
    return tuple(str(metric["metric"]) for metric in listed)


def _read(path: Path) -> tuple[dict[str, Any], Any]:
    """A definition with what it includes, its functions left as their names; and the hash of its files."""
    import yaml

    class Loader(yaml.SafeLoader):
        """A loader of a class of its own, so that `!function` means nothing elsewhere."""

    Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))
    try:
        content = path.read_bytes()
        config, digest = yaml.load(content, Loader), hashlib.sha256(content)
        included = config.pop("include", [])
    except (OSError, AttributeError, TypeError, yaml.YAMLError) as error:
        detail = " ".join(str(error).split())[:200]
        raise LutlabError(
            f"{path} cannot be read as a definition of lm-eval's ({type(error).__name__}: {detail}): install it again"
        ) from error
    merged: dict[str, Any] = {}
    for name in [included] if isinstance(included, str) else included:
        below, digest_below = _read(path.parent / name)
        merged |= below
        digest.update(digest_below.digest())
    return merged | config, digest
