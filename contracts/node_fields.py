"""Checked fields of nodes, for messages and HTTP shapes alike."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from nodesmith.contracts.nats.readings import MOST_BYTES
from nodesmith.domain import budget
from nodesmith.domain import labels as labelling
from nodesmith.domain.errors import InvalidRequest

MOST_REPLICAS = 10_000

Labels = Annotated[dict[str, str], BeforeValidator(lambda value: value or {})]
"""LocalAI workers may send null for an empty map."""


def _in_range(labels: dict[str, str]) -> dict[str, str]:
    if wrong := labelling.complaint(labels):
        raise ValueError(wrong)
    return labels


def readable_budget(written: str) -> str:
    try:
        budget.parse(written)
    except InvalidRequest as refused:
        raise ValueError(refused.message) from refused
    return written


CheckedLabels = Annotated[Labels, AfterValidator(_in_range)]

CheckedBudget = Annotated[str, Field(max_length=64), AfterValidator(readable_budget)]

CheckedBytes = Annotated[int | None, Field(ge=0, le=MOST_BYTES)]
