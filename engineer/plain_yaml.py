"""A small, safe subset of YAML: mappings, lists and scalars that all stay texts.

Written for text that a language model wrote and nobody checked. The parser's events are read one
by one, so that depth, length, aliases and tags are refused before anything is built, and no
scalar is ever turned into a number, date or boolean here (YAML 1.1 reads 1:30 as 90).
"""

import dataclasses
from typing import Any

import yaml

Node = str | list[Any] | dict[str, Any]
"""A scalar as it is written, a list of nodes, or a mapping from scalars to nodes."""

MAX_CHARACTERS = 16_384
MAX_EVENTS = 4_096
MAX_DEPTH = 8

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class NotPlainError(ValueError):
    """The text is not YAML, or not of the plain subset."""


@dataclasses.dataclass
class _Open:
    """A mapping or list whose end has not come yet."""

    node: dict[str, Node] | list[Node]
    key: str | None = None


def read(text: str) -> list[Node]:
    """The documents of a YAML text; JSON is read as well, being almost a subset.

    Raises:
      NotPlainError: the text is longer than `MAX_CHARACTERS`, is no YAML, is nested deeper than
        `MAX_DEPTH`, has more than `MAX_EVENTS` parts, uses anchors, aliases, explicit tags or
        keys that are no scalars, or gives a key twice.
    """
    if len(text) > MAX_CHARACTERS:
        raise NotPlainError(f"{len(text)} characters, allowed: {MAX_CHARACTERS}")
    documents: list[Node] = []
    stack: list[_Open] = []

    def add(node: Node) -> None:
        if not stack:
            documents.append(node)
            return
        top = stack[-1]
        if isinstance(top.node, list):
            top.node.append(node)
        elif top.key is None:
            if not isinstance(node, str):
                raise NotPlainError("a key is not a scalar")
            if node in top.node:
                raise NotPlainError(f"key {node[:40]!a} is given twice")
            top.key = node
        else:
            top.node[top.key] = node
            top.key = None

    try:
        # A tab is white space in JSON, but an error where YAML wants an indentation.
        for count, event in enumerate(yaml.parse(text.replace("\t", "  "), Loader=_Loader)):
            if count >= MAX_EVENTS:
                raise NotPlainError(f"more than {MAX_EVENTS} parts")
            if isinstance(event, yaml.AliasEvent):
                raise NotPlainError("aliases are not allowed")
            if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
                raise NotPlainError("anchors are not allowed")
            if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)) and event.tag:
                raise NotPlainError("tags are not allowed")
            if isinstance(event, yaml.ScalarEvent):
                add(event.value)
            elif isinstance(event, yaml.CollectionStartEvent):
                if len(stack) >= MAX_DEPTH:
                    raise NotPlainError(f"nested deeper than {MAX_DEPTH}")
                stack.append(_Open({} if isinstance(event, yaml.MappingStartEvent) else []))
            elif isinstance(event, yaml.CollectionEndEvent):
                add(stack.pop().node)
    except (yaml.YAMLError, UnicodeError) as error:
        raise NotPlainError(f"no YAML: {' '.join(str(error).split())[:120]}") from error
    return documents
