"""What can keep the stack from starting, as one sentence with a remedy."""

from domain.errors import NodesmithError


class StackError(NodesmithError):
    """The stack cannot start."""

    code = "stack"

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy
