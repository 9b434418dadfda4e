"""What a call to the API can fail with. Every error is a `ClientError`, with a sentence and a remedy for people."""

from http import HTTPStatus

from pydantic import JsonValue

from nodesmith.contracts.http.shared import Problem


class ClientError(Exception):
    """A call did not get the answer that it wanted."""

    def __init__(self, sentence: str, remedy: str = "", *, code: str, is_retryable: bool = False) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy
        self.code = code
        self.is_retryable = is_retryable
        """the same call may succeed later"""


class Refused(ClientError):
    """The API refused the request, or failed: `problem` says why."""

    def __init__(self, problem: Problem, *, retry_after_s: float = 0.0) -> None:
        status = problem.status
        is_retryable = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS
        super().__init__(problem.detail, problem.remedy, code=problem.code, is_retryable=is_retryable)
        self.problem = problem
        self.retry_after_s = retry_after_s
        """how long the API asks the client to wait before the next request"""

    @property
    def status(self) -> int:
        return self.problem.status

    @property
    def facts(self) -> dict[str, JsonValue]:
        return self.problem.facts


class Unreachable(ClientError):
    """Nothing answers at the address, or the connection broke. A change may have been made."""

    def __init__(self, sentence: str, remedy: str) -> None:
        super().__init__(sentence, remedy, code="unreachable", is_retryable=True)


class UnexpectedAnswer(ClientError):
    """Another program, or another version, listens at the address."""

    def __init__(self, sentence: str) -> None:
        remedy = "Check that the address belongs to a Nodesmith API of this version."
        super().__init__(sentence, remedy, code="unexpected_answer")
