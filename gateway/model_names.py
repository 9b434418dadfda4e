"""Finds the model that a request names: in a header, in its JSON or form, or in its query."""

import re
from collections.abc import Mapping
from urllib.parse import parse_qs

from pydantic_core import from_json

from nodesmith.domain.routing import BLOCK, BLOCKS, prefix_of
from nodesmith.gateway.answers import Refusal, bad_request
from nodesmith.gateway.bodies import START, Body

HEADER = b"x-model"
LONGEST_NAME = 512
_BOUNDARY = re.compile(rb'boundary="?([^";]{1,200})"?', re.IGNORECASE)
_FIELD = re.compile(rb'content-disposition:[^\r\n]*;\s*name="?model"?\s*(?:;|\r?\n)', re.IGNORECASE)
_PROMPTS = (b'"messages"', b'"prompt"', b'"input"')
_NO_MODEL = (
    f"The request names no model: give `model` in the JSON body or in the first {START // 1024} KiB of a form, "
    "or the header X-Model."
)


def model_of(headers: Mapping[bytes, bytes], query: bytes, body: Body) -> str:
    """Return the name; raise a refusal if there is none. The header wins, because it was added for the gateway."""
    name: object = headers.get(HEADER, b"").decode("latin-1").strip()
    if not name and body.size:
        name = _in_body(headers.get(b"content-type", b""), body)
    if not name and b"model=" in query:
        name = parse_qs(query.decode("latin-1")).get("model", [""])[0]
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME:
        raise no_model()
    return name


def no_model() -> Refusal:
    return bad_request("model_missing", _NO_MODEL)


def prompt_prefix(model: str, body: Body) -> bytes | None:
    """The key of the prompt's beginning. Clients write the same conversation with the same bytes each time."""
    content = body.content
    for name in _PROMPTS:
        start = content.find(name, 0, START)
        if start >= 0:
            return prefix_of(model, bytes(content[start : start + BLOCK * BLOCKS]))
    return None


def _in_body(content_type: bytes, body: Body) -> object:
    if content_type.lower().startswith(b"multipart/"):
        return _in_form(content_type, bytes(body.content[:START]))
    return _in_json(body)


def _in_json(body: Body) -> object:
    """A body in a file is read as far as it is in memory."""
    try:
        parsed = from_json(bytes(body.content), allow_partial=body.is_spooled, cache_strings=False)
    except ValueError as error:
        raise bad_request("invalid_json", f"The body is not JSON: {error}.") from error
    return parsed.get("model") if isinstance(parsed, dict) else None


def _in_form(content_type: bytes, start: bytes) -> str:
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        return ""
    for part in start.split(b"--" + boundary.group(1)):
        head, found, value = part.partition(b"\r\n\r\n")
        if found and _FIELD.search(head + b"\r\n") and value.endswith(b"\r\n"):
            return value.strip().decode("utf-8", "replace")
    return ""
