"""The error that the stack raises when it cannot start: one sentence and a remedy."""

from nodesmith.domain.errors import NodesmithError


class StackError(NodesmithError):
    """The stack cannot start."""

    code = "stack"

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy
