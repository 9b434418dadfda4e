"""The error of a failed command: a sentence, a remedy and an exit code."""

import json

NOT_DONE = 1
"""the request was refused, or the operation did not succeed"""
UNREACHABLE = 3
"""no answer from the API"""
INTERRUPTED = 130
"""Ctrl-C, as in shells"""


class CommandFailed(Exception):
    """A command failed."""

    def __init__(
        self,
        sentence: str,
        remedy: str = "",
        *,
        code: str = "",
        exit_code: int = NOT_DONE,
        is_retryable: bool = False,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy
        self.code = code
        self.exit_code = exit_code
        self.is_retryable = is_retryable
        """a retry may succeed: a server does not answer or is overloaded"""
        self.retry_after_s = retry_after_s
        """how long the API asks the client to wait before a retry"""

    def as_json(self) -> str:
        return json.dumps({"error": {"code": self.code, "message": self.sentence, "remedy": self.remedy}})

    def as_text(self) -> str:
        return "\n".join(part for part in (f"error: {self.sentence}", self.remedy and f"  {self.remedy}") if part)
