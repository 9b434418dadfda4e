"""HTTP shapes whose fields are those of an entity or of a value of the use cases, and nothing else."""

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel

View = TypeVar("View", bound=BaseModel)


def view_of(shape: type[View], entity: object) -> View:
    """Copy the fields of the same names."""
    return shape.model_validate(entity, from_attributes=True)


def fields_of(shape: BaseModel) -> dict[str, Any]:
    """The fields of a request, for the value with the same fields that a use case takes."""
    return {name: getattr(shape, name) for name in type(shape).model_fields}


def views_of(shape: type[View], entities: Iterable[object]) -> list[View]:
    return [view_of(shape, each) for each in entities]
