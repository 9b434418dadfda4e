"""Types of values that nodes send. An invalid value is read as unknown, so the rest of the message still counts.

Many nodes share one database write, so every value must fit its column.
"""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

MOST_BYTES = 2**60
"""of memory, disk or a download; a larger value is an error"""
MOST_DECISIONS = 2**62
"""fits a bigint, with room for the next value"""
LONGEST_IDENTIFIER = 255
LONGEST_SENTENCE = 4000
LONGEST_ETA_S = 10 * 365 * 86_400.0
LONGEST_RETRY_AFTER_S = 86_400.0
"""a source may ask for a delay of one day; its next response may ask again"""
MOST_OPEN_OPS = 1000
MOST_CAPTIONS = 20
EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""a day within what Python can represent, so that the value can be read and shown in every time zone"""

T = TypeVar("T")


def _or(unknown: T, fits: Callable[[Any], bool]) -> WrapValidator:
    """Validate the value; return `unknown` if it has another type or does not fit."""

    def read(value: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            known = handler(value)
        except ValidationError:
            return unknown
        return known if known is not None and fits(known) else unknown

    return WrapValidator(read)


def _within(most: float) -> Callable[[Any], bool]:
    """Comparisons with NaN are false, so NaN does not fit."""
    return lambda value: 0 <= value <= most


def _at_most(most: float) -> AfterValidator:
    return AfterValidator(lambda value: value if value is None else min(value, most))


def _is_moment(moment: datetime) -> bool:
    """Whether it has a time zone and every reader can represent it: comparisons take the time zone into account."""
    return moment.tzinfo is not None and EARLIEST <= moment <= LATEST


def _is_identifier(text: str) -> bool:
    return "\0" not in text and len(text) <= LONGEST_IDENTIFIER


def _identifier(text: str) -> str:
    if not _is_identifier(text):
        raise ValueError(f"an identifier must have at most {LONGEST_IDENTIFIER} characters, and no NUL")
    return text


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError("the identifier of an operation must not be empty")
    return text


def _shortened(longest: int) -> AfterValidator:
    return AfterValidator(lambda text: text if len(text) <= longest else f"{text[: longest - 1]}…")


def _readable_identifiers(sent: object) -> object:
    if not isinstance(sent, list):
        return []
    return [each for each in sent if isinstance(each, str) and each and _is_identifier(each)][:MOST_OPEN_OPS]


def _readable_captions(sent: object) -> object:
    if not isinstance(sent, list):
        return []
    return [each for each in sent if isinstance(each, str) and each and _is_identifier(each)][:MOST_CAPTIONS]


OR_NOT_KNOWN = _or(None, lambda _: True)
"""for a whole part of a message"""
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
Moment = Annotated[datetime | None, _or(None, _is_moment)]
Captions = Annotated[list[str], BeforeValidator(_readable_captions)]
OpIds = Annotated[list[str], BeforeValidator(_readable_identifiers)]
