"""Reads untrusted YAML lists item by item, so that a broken item does not affect the others."""

import contextlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML without libyaml: same result, ten times slower
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

LARGEST = 16 * 1024 * 1024
DEEPEST = 32
MOST_ITEMS = 20_000
MOST_NODES = 500_000
"""counting every alias and every merge (`<<`) as a copy"""

_BRACKETS = re.compile(r"[\[\]{}]")
_SUSPICIOUS = 256
"""with this many open brackets, or this long a line prefix, the depth is checked before nodes are built"""
_INDENTED = re.compile(rf"^[ \t?:-]{{{_SUSPICIOUS}}}", re.MULTILINE)
_TEXTS = [f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "timestamp")]
_SEQUENCE = yaml.SequenceNode
_ITEM = re.compile(r"^-(?=\s|$)", re.MULTILINE)
_NAME = re.compile(r"^[-\s]*name:\s*(.+?)\s*$", re.MULTILINE)


class NotAnIndex(ValueError):
    """The text is not a list of backends."""


@dataclass(frozen=True)
class Item:
    """One item: its value, or why it has none."""

    line: int
    value: Any = None
    reason: str = ""
    name: str = ""
    """name of a broken item, if it can be determined"""


class _Loader(_SafeLoader):
    """Constructs plain values only. `version: 1.10` is text, as authors mean it."""

    yaml_constructors = {  # noqa: RUF012 - the base class declares it
        **_SafeLoader.yaml_constructors,
        **dict.fromkeys(_TEXTS, _SafeLoader.construct_yaml_str),
    }


def read_items(text: str) -> list[Item]:
    """Return the items of a YAML list; raise `NotAnIndex` if it is not a list. Later items may use earlier anchors."""
    if len(text) > LARGEST:
        raise NotAnIndex(f"It is larger than {LARGEST} characters.")
    try:
        return _items(text)
    except yaml.YAMLError as error:
        return _without_broken(text, error)
    except RecursionError:
        raise NotAnIndex("It is nested too deeply.") from None


def _items(text: str) -> list[Item]:
    _refuse_deep_nesting(text)
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if not isinstance(root, _SEQUENCE):
            raise NotAnIndex("It is not a list.")
        _measure(root)
        harmless: set[int] = set()
        return [_item(loader, node, harmless) for node in root.value]
    finally:
        loader.dispose()


def _refuse_deep_nesting(text: str) -> None:
    """Limit the depth first: libyaml builds nodes recursively without a limit, and would crash the process."""
    if not _INDENTED.search(text) and not _opens_many(text):
        return
    depth = 0
    with contextlib.suppress(yaml.YAMLError):  # reported by the actual parser
        for event in yaml.parse(text, Loader=_SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _SUSPICIOUS:
                raise NotAnIndex(f"It is nested deeper than {DEEPEST}.")


def _opens_many(text: str) -> bool:
    """A quick check that may give false positives: brackets in texts count too."""
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth = depth + 1 if bracket[0] in "[{" else max(depth - 1, 0)
        if depth > _SUSPICIOUS:
            return True
    return False


def _item(loader: _Loader, node: yaml.Node, harmless: set[int]) -> Item:
    line = node.start_mark.line + 1
    if _is_cyclic(node, harmless):
        return Item(line, reason="It contains itself (a cycle of YAML aliases).", name=_name_of(node))
    try:
        # Not construct_document: it forgets the anchors, and would construct their values again for each item.
        return Item(line, loader.construct_object(node, deep=True))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        loader.recursive_objects.clear()
        loader.deep_construct = False
        return Item(line, reason=_words(error), name=_name_of(node))


def _name_of(node: yaml.Node) -> str:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((str(value.value) for key, value in pairs if key.value == "name"), "")


def _measure(root: yaml.Node) -> None:
    """Limit items, depth and number of nodes before values are constructed."""
    if len(root.value) > MOST_ITEMS:
        raise NotAnIndex(f"It lists more than {MOST_ITEMS} backends.")
    if _expanded(root) > MOST_NODES:
        raise NotAnIndex("It has too many parts.")
    seen: set[int] = set()
    level = [root]
    for _ in range(DEEPEST):
        level = [below for node in level for below in _below(node) if id(below) not in seen]
        seen.update(map(id, level))
        if not level:
            return
    raise NotAnIndex(f"It is nested deeper than {DEEPEST}.")


def _expanded(root: yaml.Node) -> int:
    """Count the nodes with every alias as a copy, because each entry is validated as a whole. Visits a node once."""
    sizes: dict[int, int] = {}
    waiting: list[tuple[yaml.Node, bool]] = [(root, True)]
    while waiting:
        node, enters = waiting.pop()
        if not enters:
            sizes[id(node)] = 1 + len(node.value) + sum(sizes[id(below)] for below in _below(node))
        elif id(node) not in sizes:
            sizes[id(node)] = 1  # while it is being visited: a cycle reads this
            if not isinstance(node, yaml.ScalarNode):
                waiting.append((node, False))
                waiting.extend((below, True) for below in _below(node))
    return sizes[id(root)]


def _below(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, _SEQUENCE):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                yield key
            if not isinstance(value, yaml.ScalarNode):
                yield value


def _is_cyclic(root: yaml.Node, harmless: set[int]) -> bool:
    """Return whether a collection contains itself; `harmless` are those already known not to."""
    path: set[int] = set()
    waiting: list[tuple[yaml.Node, bool]] = [(root, True)]
    while waiting:
        node, enters = waiting.pop()
        if not enters:
            path.discard(id(node))
            harmless.add(id(node))
        elif id(node) in path:
            return True
        elif id(node) not in harmless and not isinstance(node, yaml.ScalarNode):
            path.add(id(node))
            waiting.append((node, False))
            waiting.extend((below, True) for below in _below(node))
    return False


# items of a document with a syntax error, without the broken ones --------------------------------------------


@dataclass
class _Chunk:
    """The lines of one item, parsed separately as far as possible."""

    text: str
    line: int
    reason: str = ""

    def __post_init__(self) -> None:
        self.defines: set[str] = set()
        self.uses: set[str] = set()
        try:
            for event in yaml.parse(self.text, Loader=_SafeLoader):
                names = self.uses if isinstance(event, yaml.AliasEvent) else self.defines
                if isinstance(event, yaml.NodeEvent) and event.anchor:
                    names.add(event.anchor)
        except yaml.YAMLError as error:
            self.reason = _words(error)

    def broken(self) -> Item:
        named = _NAME.search(self.text)
        return Item(self.line, reason=self.reason, name=named[1].strip("\"'") if named else "")


def _without_broken(text: str, error: yaml.YAMLError) -> list[Item]:
    chunks = _chunks(text)
    known: set[str] = set()
    for chunk in chunks:
        if not chunk.reason and (missing := chunk.uses - chunk.defines - known):
            chunk.reason = f"It uses the anchor {', '.join(sorted(missing))}, which does not exist."
        if not chunk.reason:
            known |= chunk.defines
    broken = [chunk.broken() for chunk in chunks if chunk.reason]
    if not broken or len(broken) == len(chunks):
        raise NotAnIndex(f"It is not YAML: {_words(error)}") from error
    blanks = ("\n" * chunk.text.count("\n") if chunk.reason else chunk.text for chunk in chunks)
    try:
        sound = _items("\n" * (chunks[0].line - 1) + "".join(blanks))
    except yaml.YAMLError as still:
        raise NotAnIndex(f"It is not YAML: {_words(still)}") from still
    return sorted([*sound, *broken], key=lambda item: item.line)


def _chunks(text: str) -> list[_Chunk]:
    """Split where an item begins in the first column, as in every known index."""
    starts = [found.start() for found in _ITEM.finditer(text)]
    chunks: list[_Chunk] = []
    line = text.count("\n", 0, starts[0]) + 1 if starts else 1
    for start, end in itertools.pairwise([*starts, len(text)]):
        chunks.append(_Chunk(text[start:end], line))
        line += text.count("\n", start, end)
    return chunks


def _words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "It is nested too deeply."
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if not problem:
        return str(error) or type(error).__name__
    return f"{problem[0].upper()}{problem[1:]}" + (f" (column {mark.column + 1})." if mark else ".")
