"""The HTML pages: files in `static/`, read once; the sign-in page takes a sentence."""

from functools import cache
from pathlib import Path
from string import Template

from starlette.responses import FileResponse

STATIC = Path(__file__).parent / "static"
STYLES = "/static/nodesmith.css"
"""public, on both ports: the sign-in page needs it too"""
NOT_SIGNED_IN = "This browser is not signed in."


@cache
def page(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def sign_in_page(sentence: str) -> str:
    """The page for a browser that is not signed in; `sentence` must be HTML."""
    return Template(page("sign_in.html")).substitute(sentence=sentence)


def styles() -> FileResponse:
    return FileResponse(STATIC / "nodesmith.css", media_type="text/css")
