"""The error of a failed command: a sentence, a remedy and an exit code."""

import json

from nodesmith.domain.errors import NodesmithError

NOT_DONE = 1
"""the request was refused, or the operation did not succeed"""
UNREACHABLE = 3
"""no answer from the API"""
INTERRUPTED = 130
"""Ctrl-C, as in shells"""

_EXIT_CODES = {"unreachable": UNREACHABLE}
"""code of an error -> exit code; all others are `NOT_DONE`"""


class CommandFailed(Exception):
    """A command failed."""

    def __init__(self, sentence: str, remedy: str = "", *, code: str = "", exit_code: int = NOT_DONE) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy
        self.code = code
        self.exit_code = exit_code

    def as_json(self) -> str:
        return json.dumps({"error": {"code": self.code, "message": self.sentence, "remedy": self.remedy}})

    def as_text(self) -> str:
        return "\n".join(part for part in (f"error: {self.sentence}", self.remedy and f"  {self.remedy}") if part)


def failure_of(error: NodesmithError) -> CommandFailed:
    """Convert an error of the API's client, of the stack or of the domain."""
    exit_code = _EXIT_CODES.get(error.code, NOT_DONE)
    return CommandFailed(error.message, getattr(error, "remedy", ""), code=error.code, exit_code=exit_code)
