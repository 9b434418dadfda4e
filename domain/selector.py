"""Selectors over labels, as Kubernetes users write them: `zone=a, gpu.vram in (24GB, 48GB), !quarantine`."""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from nodesmith.domain.errors import InvalidRequest

MOST_REQUIREMENTS = 50

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<sign>==|!=|=|!|,|\(|\))
      | "(?P<quoted>[^"\0]*)"
      | (?P<word>[^\s,()=!"'<>~\0]+)
      | (?P<other>\S)
    )""",
    re.VERBOSE,
)
_BARE = re.compile(r"""[^\s,()=!"'<>~]+""")


class Operator(enum.StrEnum):
    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    ABSENT = "absent"


@dataclass(frozen=True)
class Requirement:
    """One condition on one key. `NOT_IN` also holds for a node without that key, as in Kubernetes."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case Operator.EXISTS:
                return self.key in labels
            case Operator.ABSENT:
                return self.key not in labels
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values

    def __str__(self) -> str:
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.ABSENT:
                return f"!{self.key}"
            case _:
                return f"{self.key} {self.operator} ({','.join(_quoted_if_needed(value) for value in self.values)})"


@dataclass(frozen=True)
class Selector:
    """Matches a node if all requirements hold; without requirements it matches every node."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


EVERYTHING = Selector()


def parse(text: str) -> Selector:
    """Parse a selector; raise `InvalidRequest` with the position of the syntax error."""
    return _Parser(text).selector()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int
    """counted from 1"""


_END = "end"


class _Parser:
    """Recursive-descent parser; each method consumes the part that it is named after."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = 0

    def selector(self) -> Selector:
        if self._current.kind == _END:
            return EVERYTHING
        requirements = [self._requirement()]
        while self._accept(","):
            requirements.append(self._requirement())
        if self._current.kind != _END:
            self._fail("`,` or one of the operators =, ==, !=, in, notin")
        if len(requirements) > MOST_REQUIREMENTS:
            raise _syntax_error(f"has more than {MOST_REQUIREMENTS} requirements", 1)
        return Selector(tuple(requirements))

    def _requirement(self) -> Requirement:
        if self._accept("!"):
            return Requirement(self._key(), Operator.ABSENT)
        key = self._key()
        if self._accept("=", "=="):
            return Requirement(key, Operator.IN, (self._value(),))
        if self._accept("!="):
            return Requirement(key, Operator.NOT_IN, (self._value(),))
        if self._current.kind == "word" and self._current.text in (Operator.IN, Operator.NOT_IN):
            return Requirement(key, Operator(self._advance().text), self._values())
        return Requirement(key, Operator.EXISTS)

    def _key(self) -> str:
        if self._current.kind != "word":
            self._fail("the key of a label")
        return self._advance().text

    def _values(self) -> tuple[str, ...]:
        if not self._accept("("):
            self._fail("`(` and a list of values")
        if self._current.text == ")" and self._current.kind == "sign":
            self._fail("a value")
        values = {self._value()}
        while self._accept(","):
            values.add(self._value())
        if not self._accept(")"):
            self._fail("`,` or `)`")
        return tuple(sorted(values))

    def _value(self) -> str:
        """Parse a word or a quoted text; a missing value is the empty value, as in Kubernetes."""
        if self._current.kind in ("word", "quoted"):
            return self._advance().text
        if self._current.kind != _END and (self._current.kind != "sign" or self._current.text not in (",", ")")):
            self._fail("a value")
        return ""

    @property
    def _current(self) -> _Token:
        return self._tokens[self._next]

    def _advance(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _accept(self, *signs: str) -> bool:
        found = self._current.kind == "sign" and self._current.text in signs
        self._next += found
        return found

    def _fail(self, expected: str) -> NoReturn:
        token = self._current
        found = "nothing more" if token.kind == _END else f"`{token.text}`"
        raise _syntax_error(f"position {token.position}: expected {expected}, found {found}", token.position)


def _tokens(text: str) -> list[_Token]:
    found = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        found.append(_Token(kind, match[kind], match.start(kind) + (kind != "quoted")))
    return [*found, _Token(_END, "", len(text) + 1)]


def _quoted_if_needed(value: str) -> str:
    return value if _BARE.fullmatch(value) else f'"{value}"'


def _syntax_error(complaint: str, position: int) -> InvalidRequest:
    return InvalidRequest(f"selector: {complaint}.", field="selector", position=position)
