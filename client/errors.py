"""What a call to the API can fail with. Every error is a `ClientError`, with a sentence and a remedy for people."""

from http import HTTPStatus

from nodesmith.contracts.http.shared import Problem
from nodesmith.domain.errors import NodesmithError


class ClientError(NodesmithError):
    """A call did not get the answer that it wanted."""

    def __init__(
        self, message: str, remedy: str = "", *, code: str, is_retryable: bool = False, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.code = code
        self.is_retryable = is_retryable
        """the same call may succeed later"""
        self.retry_after_s = retry_after_s
        """how long the API asks the client to wait before the next request"""


class Refused(ClientError):
    """The API refused the request, or failed: `problem` says why."""

    def __init__(self, problem: Problem, *, retry_after_s: float = 0.0) -> None:
        status = problem.status
        is_retryable = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS
        super().__init__(
            problem.detail, problem.remedy, code=problem.code, is_retryable=is_retryable, retry_after_s=retry_after_s
        )
        self.problem = problem
        self.facts.update(problem.facts)

    @property
    def status(self) -> int:
        return self.problem.status


class Unreachable(ClientError):
    """Nothing answers at the address, or the connection broke. A change may have been made."""

    code = "unreachable"

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy, code=Unreachable.code, is_retryable=True)


class UnexpectedAnswer(ClientError):
    """Another program, or another version, listens at the address."""

    def __init__(self, message: str) -> None:
        remedy = "Check that the address belongs to a Nodesmith API of this version."
        super().__init__(message, remedy, code="unexpected_answer")
