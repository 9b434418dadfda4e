"""The requests with curl in the documentation, sent as they are written."""

import re
import shlex
from pathlib import Path

import httpx2
import pytest

from tests.api.station import ADMIN_TOKEN, Api

DOCUMENTS = Path(__file__).parents[3] / "docs"


def requests() -> list[str]:
    pages = sorted(DOCUMENTS.rglob("*.md"))
    return [line for page in pages for line in re.findall(r"^ {4}(curl .+)$", page.read_text(), re.MULTILINE)]


def test_requests_are_found() -> None:
    assert len(requests()) >= 3


@pytest.fixture(scope="module", autouse=True)
async def node(api: Api) -> None:
    """The node that the examples name."""
    await api.approved_node(name="agent-1")


@pytest.mark.parametrize("command", requests(), ids=lambda command: command.rpartition("/")[2])
async def test_documented_request_is_answered(api: Api, command: str) -> None:
    filled = command.replace("$NODESMITH_TOKEN", ADMIN_TOKEN).replace("$NODESMITH_URL", api.url)
    _, *words = shlex.split(filled)
    headers, content, url = {}, None, ""
    while words:
        word = words.pop(0)
        if word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        elif word == "-d":
            content = words.pop(0)
        else:
            assert not word.startswith("-"), word
            url = word
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        answer = await http.request("GET" if content is None else "POST", url, content=content)
    assert answer.is_success, answer.text
