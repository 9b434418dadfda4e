"""The overview page, its files, and the API documentation; nothing is loaded from another host."""

from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path, Request
from fastapi.responses import FileResponse, HTMLResponse

from nodesmith.api.auth import viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.pages import STATIC, page
from nodesmith.api.temporal_ui import address_for

router = APIRouter(include_in_schema=False, dependencies=[Depends(viewer)])

_FILES = {"overview.js": "text/javascript", "docs.js": "text/javascript"}


@router.get("/")
async def overview() -> HTMLResponse:
    return HTMLResponse(page("overview.html"))


@router.get("/docs")
async def docs() -> HTMLResponse:
    return HTMLResponse(page("docs.html"))


@router.get("/links.json")
async def links(request: Request, deps: Deps) -> dict[str, str]:
    """Links to related user interfaces."""
    return {"temporal_ui": address_for(request, deps)}


@router.get("/static/{file}")
async def static(file: Annotated[str, Path()]) -> FileResponse:
    if file not in _FILES:
        raise HTTPException(404)
    return FileResponse(STATIC / file, media_type=_FILES[file])
