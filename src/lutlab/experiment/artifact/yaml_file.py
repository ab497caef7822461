"""YAML of experiments/ and of users' folders, read as data: no tag makes an object, no file is larger than it looks.

Anchors may be used again, as artifacts do, but not so often that ten lines stand for a billion values ("billion
laughs"). A key that stands twice in a mapping would silently be the second one: it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lutlab.base.errors import LutlabError
from lutlab.base.escapes import CONTROLS

MOST_VALUES = 1_000_000  # with anchors written out; the largest of experiments/ has 8,000


def read_yaml(path: Path) -> Any:
    """The content of a file: mappings, lists, texts, numbers, truths, dates, None.

    Raises:
        LutlabError: it cannot be read, is no UTF-8 or no YAML, nested too deeply or larger than MOST_VALUES; a key
            stands twice, or a text holds control characters, which would act on the reader's terminal.
    """
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        if root is None:
            return None
        for mistake in _mistakes(root):
            raise LutlabError(f"{path}, {mistake}")
        return loader.construct_document(root)
    except OSError as error:
        raise LutlabError(f"{path} cannot be read ({error.strerror}): restore the file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LutlabError(f"{path} is not YAML in UTF-8: {error}") from error
    except RecursionError as error:
        raise LutlabError(f"{path} is nested too deeply to be read: write it flatter") from error


def _mistakes(root: yaml.Node) -> Iterator[str]:
    """The line and cause of what is refused of a tree of nodes."""
    sizes: dict[int, int] = {}  # of nodes, by id, with anchors written out; 0 while one is open
    nodes: list[yaml.Node] = []  # each once

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            return sizes[id(node)] or MOST_VALUES + 1  # it holds itself
        sizes[id(node)] = 0
        nodes.append(node)
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            inner = [child for pair in inner for child in pair]
        sizes[id(node)] = 1 + sum(map(size, inner))
        return sizes[id(node)]

    if (count := size(root)) > MOST_VALUES:
        yield f"its anchors stand for {count:.0e} values or for themselves: write out what is meant"
    for node in nodes:
        line = f"line {node.start_mark.line + 1}"
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            keys = [key for key in keys if key != "<<"]
            if twice := next((key for i, key in enumerate(keys) if key in keys[:i]), None):
                yield f"{line}: '{twice}' stands twice in one mapping: keep one of them"
        elif isinstance(node, yaml.ScalarNode) and (match := CONTROLS.search(node.value)):
            yield f"{line}: a text holds the control character {match[0]!r}: leave it out"
