"""Names for display: one line, without control characters and without characters that change the text direction."""

from typing import Annotated

from pydantic import AfterValidator

from nodesmith.domain.names import is_plain


def _plain(name: str) -> str:
    if not is_plain(name):
        raise ValueError("it contains a control character or an invisible character")
    return name


PlainName = Annotated[str, AfterValidator(_plain)]
