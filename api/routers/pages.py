"""The page for people, its files, and the documentation of the API; nothing comes from another host."""

from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path
from fastapi.responses import FileResponse, HTMLResponse

from api.auth import viewer
from api.pages import STATIC, page
from api.parts import PartsOf

router = APIRouter(include_in_schema=False, dependencies=[Depends(viewer)])

_FILES = {"nodesmith.css": "text/css", "overview.js": "text/javascript", "docs.js": "text/javascript"}


@router.get("/")
async def overview() -> HTMLResponse:
    return HTMLResponse(page("overview.html"))


@router.get("/docs")
async def docs() -> HTMLResponse:
    return HTMLResponse(page("docs.html"))


@router.get("/links.json")
async def links(parts: PartsOf) -> dict[str, str]:
    """Where else there is something to see."""
    return {"temporal_ui": parts.temporal_ui_url}


@router.get("/static/{file}")
async def static(file: Annotated[str, Path()]) -> FileResponse:
    if file not in _FILES:
        raise HTTPException(404)
    return FileResponse(STATIC / file, media_type=_FILES[file])
