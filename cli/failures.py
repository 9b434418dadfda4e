"""How a command fails: one sentence, one remedy, one exit code."""

import json

NOT_DONE = 1
"""refused, or the operation did not succeed"""
UNREACHABLE = 3
"""no answer from the API"""
INTERRUPTED = 130
"""Ctrl-C, as shells count it"""


class CommandFailed(Exception):
    """A command cannot do what was asked."""

    def __init__(
        self,
        sentence: str,
        remedy: str = "",
        *,
        code: str = "",
        exit_code: int = NOT_DONE,
        may_pass: bool = False,
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy
        self.code = code
        self.exit_code = exit_code
        self.may_pass = may_pass
        """asking again later may help: a server is away or overloaded"""

    def as_json(self) -> str:
        return json.dumps({"error": {"code": self.code, "message": self.sentence, "remedy": self.remedy}})

    def as_text(self) -> str:
        return "\n".join(part for part in (f"error: {self.sentence}", self.remedy and f"  {self.remedy}") if part)
