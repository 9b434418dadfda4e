"""The pages: files in `static/`, read once; one of them takes a sentence."""

from functools import cache
from pathlib import Path
from string import Template

STATIC = Path(__file__).parent / "static"


@cache
def page(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def sign_in_page(sentence: str) -> str:
    """The page of a browser that is not signed in; `sentence` is HTML already."""
    return Template(page("sign_in.html")).substitute(sentence=sentence)
