"""What all NATS messages have in common."""

from typing import Self

from pydantic import BaseModel, ConfigDict

DOCUMENTED = ConfigDict(use_attribute_docstrings=True)
"""for messages that are also HTTP shapes: the docstrings of their fields appear in OpenAPI"""


class Message(BaseModel):
    """A message on NATS. Unknown fields are ignored, so either side may be newer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def encode(self) -> bytes:
        """Omit fields that are not set: LocalAI's workers treat absent and empty alike."""
        return self.model_dump_json(exclude_none=True, exclude_defaults=True).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Parse the message; raise `ValueError` if the payload is not one."""
        return cls.model_validate_json(payload)


class Signed(Message):
    """Signed bytes. `payload` is parsed only after the signature was verified."""

    kid: str
    payload: str
    signature: str
