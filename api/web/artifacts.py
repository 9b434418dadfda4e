"""The archives of the built-in gallery: whole, or a range (Range, If-Range, ETag)."""

import re
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path
from fastapi.responses import FileResponse

from nodesmith.api.auth import viewer_or_node
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses

router = APIRouter(prefix="/artifacts", tags=["backends"], dependencies=[Depends(viewer_or_node)])

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_CONTENT = {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}


@router.get(
    "/{file}",
    response_class=FileResponse,
    responses={
        200: {"description": "The archive", "content": _CONTENT},
        206: {"description": "The requested range", "content": _CONTENT},
        416: {"description": "The range is outside the archive"},
        **responses(400, 404),
    },
)
async def get_artifact(file: Annotated[str, Path(description="echo-1.tar.gz")], deps: Deps) -> FileResponse:
    """Any role, or an approved node with its own credential."""
    archive = deps.artifacts / file
    if not _FILE_NAME.fullmatch(file) or not archive.is_file():
        raise HTTPException(404)
    return FileResponse(archive, media_type="application/gzip")
