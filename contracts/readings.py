"""Types of what a node sends. A value that cannot be is read as not known: the rest of its message still counts.

Many nodes share one write, so every value must fit its column before it gets there.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

MOST_BYTES = 2**60
"""of memory, disk or a download; more is a slip"""
MOST_DECISIONS = 2**62
"""fits a bigint, with room for the next"""
LONGEST_IDENTIFIER = 255
LONGEST_SENTENCE = 4000
LONGEST_ETA_S = 10 * 365 * 86_400.0
LONGEST_RETRY_AFTER_S = 86_400.0
"""a source may ask for a day of patience; its next answer may ask again"""
MOST_OPEN_OPS = 1000

T = TypeVar("T")


def _or(unknown: T, fits: Callable[[Any], bool]) -> WrapValidator:
    """Read the value; `unknown` when it is of another type or does not fit."""

    def read(value: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            known = handler(value)
        except ValidationError:
            return unknown
        return known if known is not None and fits(known) else unknown

    return WrapValidator(read)


def _within(most: float) -> Callable[[Any], bool]:
    """Of a NaN no comparison is true."""
    return lambda value: 0 <= value <= most


def _at_most(most: float) -> AfterValidator:
    return AfterValidator(lambda value: value if value is None else min(value, most))


def _is_identifier(text: str) -> bool:
    return "\0" not in text and len(text) <= LONGEST_IDENTIFIER


def _identifier(text: str) -> str:
    if not _is_identifier(text):
        raise ValueError(f"an identifier has at most {LONGEST_IDENTIFIER} characters, and no NUL")
    return text


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError("an operation has an identifier")
    return text


def _shortened(longest: int) -> AfterValidator:
    return AfterValidator(lambda text: text if len(text) <= longest else f"{text[: longest - 1]}…")


def _readable_identifiers(sent: object) -> object:
    if not isinstance(sent, list):
        return []
    return [each for each in sent if isinstance(each, str) and each and _is_identifier(each)][:MOST_OPEN_OPS]


Bytes = Annotated[int | None, _or(None, _within(MOST_BYTES))]
ByteCount = Annotated[int, _or(0, _within(MOST_BYTES))]
Decision = Annotated[int, _or(0, _within(MOST_DECISIONS))]
Percentage = Annotated[float, _at_most(100.0), _or(0.0, _within(math.inf))]
Rate = Annotated[float, _or(0.0, _within(MOST_BYTES))]
Eta = Annotated[float | None, _or(None, _within(LONGEST_ETA_S))]
RetryAfter = Annotated[float | None, _at_most(LONGEST_RETRY_AFTER_S), _or(None, _within(math.inf))]
Elapsed = Annotated[float, _or(0.0, _within(LONGEST_ETA_S))]
Word = Annotated[str | None, _or(None, lambda word: len(word) <= LONGEST_IDENTIFIER)]
Caption = Annotated[str, _shortened(LONGEST_IDENTIFIER)]
Sentence = Annotated[str, _shortened(LONGEST_SENTENCE)]
Identifier = Annotated[str, AfterValidator(_identifier)]
OpId = Annotated[Identifier, AfterValidator(_not_empty)]
OpIds = Annotated[list[str], BeforeValidator(_readable_identifiers)]
