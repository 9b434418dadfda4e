"""YAML lists from strangers: read item by item, so that a broken one does not take the others with it."""

import contextlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML without libyaml: the same, ten times slower
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

LARGEST = 16 * 1024 * 1024
DEEPEST = 32
MOST_NODES = 500_000
MOST_MERGED = 1_000_000
"""pairs that merges (`<<`) may copy: each level of merging merges may multiply them"""

_BRACKETS = re.compile(r"[\[\]{}]")
_SUSPICIOUS = 256
"""so many open brackets, or so long a beginning of a line, and the depth is looked at before anything is made"""
_INDENTED = re.compile(rf"^[ \t?:-]{{{_SUSPICIOUS}}}", re.MULTILINE)
_TEXTS = [f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "timestamp")]
_SEQUENCE = yaml.SequenceNode
_ITEM = re.compile(r"^-(?=\s|$)", re.MULTILINE)
_NAME = re.compile(r"^[-\s]*name:\s*(.+?)\s*$", re.MULTILINE)


class NotAnIndex(ValueError):
    """This is no list of backends."""


@dataclass(frozen=True)
class Item:
    """One item: its value, or why it has none."""

    line: int
    value: Any = None
    reason: str = ""
    name: str = ""
    """of a broken item, as far as it can be told"""


class _Loader(_SafeLoader):
    """Constructs plain values only, and no more than so many by merging. `version: 1.10` is text, as people mean it."""

    merged = 0
    yaml_constructors = {  # noqa: RUF012 - the base class declares it
        **_SafeLoader.yaml_constructors,
        **dict.fromkeys(_TEXTS, _SafeLoader.construct_yaml_str),
    }

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        before = len(node.value)
        super().flatten_mapping(node)
        self.merged += max(0, len(node.value) - before)
        if self.merged > MOST_MERGED:
            raise NotAnIndex("Its merges multiply without end.")


def read_items(text: str) -> list[Item]:
    """The items of a YAML list. Anchors of one item may be used in all that follow; `NotAnIndex` when it is no list."""
    if len(text) > LARGEST:
        raise NotAnIndex(f"It is larger than {LARGEST} characters.")
    try:
        return _items(text)
    except yaml.YAMLError as error:
        return _without_broken(text, error)
    except RecursionError:
        raise NotAnIndex("It is nested too deep.") from None


def _items(text: str) -> list[Item]:
    _refuse_abyss(text)
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


def _refuse_abyss(text: str) -> None:
    """libyaml makes nodes by recursion, without a limit: far enough down, the whole process ends."""
    if not _INDENTED.search(text) and not _opens_many(text):
        return
    depth = 0
    with contextlib.suppress(yaml.YAMLError):  # told by whoever reads it in earnest
        for event in yaml.parse(text, Loader=_SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _SUSPICIOUS:
                raise NotAnIndex(f"It is nested deeper than {DEEPEST}.")


def _opens_many(text: str) -> bool:
    """Quickly, and rather too often: brackets in texts count too."""
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
        # Not construct_document: it forgets what anchors stand for, and would make it anew for each item.
        return Item(line, loader.construct_object(node, deep=True))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, NotAnIndex):
            raise
        loader.recursive_objects.clear()
        loader.deep_construct = False
        return Item(line, reason=_words(error), name=_name_of(node))


def _name_of(node: yaml.Node) -> str:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((str(value.value) for key, value in pairs if key.value == "name"), "")


def _measure(root: yaml.Node) -> None:
    """Bound depth and number of nodes before anything is made of them; shared nodes count once."""
    seen: set[int] = set()
    level = [root]
    for _ in range(DEEPEST):
        level = [below for node in level for below in _below(node) if id(below) not in seen]
        seen.update(map(id, level))
        if len(seen) > MOST_NODES:
            raise NotAnIndex("It has too many parts.")
        if not level:
            return
    raise NotAnIndex(f"It is nested deeper than {DEEPEST}.")


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
    """Whether a collection is among those that contain it; `harmless` are those of which it is known."""
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


# one of them is no YAML: the others, without it ---------------------------------------------------------------


@dataclass
class _Chunk:
    """The lines of one item, read on their own as far as that goes."""

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
            chunk.reason = f"It uses the anchor {', '.join(sorted(missing))}, which is not there."
        if not chunk.reason:
            known |= chunk.defines
    broken = [chunk.broken() for chunk in chunks if chunk.reason]
    if not broken or len(broken) == len(chunks):
        raise NotAnIndex(f"It is no YAML: {_words(error)}") from error
    blanks = ("\n" * chunk.text.count("\n") if chunk.reason else chunk.text for chunk in chunks)
    try:
        sound = _items("\n" * (chunks[0].line - 1) + "".join(blanks))
    except yaml.YAMLError as still:
        raise NotAnIndex(f"It is no YAML: {_words(still)}") from still
    return sorted([*sound, *broken], key=lambda item: item.line)


def _chunks(text: str) -> list[_Chunk]:
    """Cut where an item begins in the first column, as every index is written."""
    starts = [found.start() for found in _ITEM.finditer(text)]
    chunks: list[_Chunk] = []
    line = text.count("\n", 0, starts[0]) + 1 if starts else 1
    for start, end in itertools.pairwise([*starts, len(text)]):
        chunks.append(_Chunk(text[start:end], line))
        line += text.count("\n", start, end)
    return chunks


def _words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "It is nested too deep."
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if not problem:
        return str(error) or type(error).__name__
    return f"{problem[0].upper()}{problem[1:]}" + (f" (column {mark.column + 1})." if mark else ".")
