"""Entity tags: a client that has the current answer gets 304 and no body."""

import hashlib
from http import HTTPStatus
from typing import TypeVar

from fastapi import HTTPException, Request, Response
from pydantic import BaseModel

Answer = TypeVar("Answer", bound=BaseModel)


def tagged(request: Request, response: Response, answer: Answer) -> Answer:
    """Return the answer with its ETag, or respond with 304 if the client has it already."""
    tag = f'"{hashlib.sha256(answer.model_dump_json().encode()).hexdigest()[:32]}"'
    known = {each.strip().removeprefix("W/") for each in request.headers.get("If-None-Match", "").split(",")}
    if tag in known or "*" in known:
        raise HTTPException(HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
    response.headers["ETag"] = tag
    return answer
