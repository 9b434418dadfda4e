"""The archives of the built-in gallery: whole, or the part that is missing (Range, If-Range, ETag)."""

import re
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path
from fastapi.responses import FileResponse

from api.auth import viewer_or_node
from api.parts import PartsOf
from api.problems import responses

router = APIRouter(prefix="/artifacts", tags=["backends"], dependencies=[Depends(viewer_or_node)])

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONTENT = {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}


@router.get(
    "/{file}",
    response_class=FileResponse,
    responses={
        200: {"description": "The archive", "content": _CONTENT},
        206: {"description": "The range that was asked for", "content": _CONTENT},
        416: {"description": "The range lies outside of the archive"},
        **responses(400, 404),
    },
)
async def get_artifact(file: Annotated[str, Path(description="echo-1.tar.gz")], parts: PartsOf) -> FileResponse:
    """For everybody with a token, and for a node with its own credential."""
    archive = parts.artifacts / file
    if not _FILE_NAME.fullmatch(file) or not archive.is_file():
        raise HTTPException(404)
    return FileResponse(archive, media_type="application/gzip")
