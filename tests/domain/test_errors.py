import inspect

import pytest

from nodesmith.domain import errors, model_errors
from nodesmith.domain.errors import NodesmithError

FOUND = [*inspect.getmembers(errors, inspect.isclass), *inspect.getmembers(model_errors, inspect.isclass)]
CLASSES = [cls for _, cls in FOUND if issubclass(cls, NodesmithError)]


@pytest.mark.parametrize("error", CLASSES)
def test_an_error_says_what_happened_in_a_sentence(error: type[NodesmithError]) -> None:
    made = error("run") if error is errors.AlreadyRunning else error()
    assert str(made) == made.message == (error.__doc__ or "").strip()
    assert made.message.endswith(".")


def test_a_message_of_its_own_replaces_the_default() -> None:
    assert str(errors.UnknownNode("There is no node 'x'.", node="x")) == "There is no node 'x'."
    assert errors.UnknownNode("...", node="x").facts == {"node": "x"}
