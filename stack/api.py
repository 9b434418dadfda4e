"""The API calls of `up` and `status`, with the standard library only, so that the parent process loads quickly."""

import http.client
import json
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from nodesmith.stack.errors import StackError
from nodesmith.stack.home import Connection

_NODES = "/api/v1/nodes"
_TIMEOUT = 5.0
_OK = 200
_REDIRECT = 300


def answers_ok(url: str, path: str) -> bool:
    """Whether a process of ours answers with 200."""
    address = urlsplit(url)
    link = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=_TIMEOUT)
    try:
        link.request("GET", path)
        return link.getresponse().status == _OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        link.close()


class LocalApi:
    """Client of this home's API, authenticated with the admin token."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ready(self) -> bool:
        try:
            status, _ = self._send("GET", "/readyz")
        except StackError:
            return False
        return status == _OK

    def nodes(self) -> list[dict[str, Any]]:
        """All nodes, of all pages."""
        page = self._call("GET", _NODES)
        nodes: list[dict[str, Any]] = page["items"]
        while page["next_cursor"]:
            page = self._call("GET", f"{_NODES}?{urlencode({'cursor': page['next_cursor']})}")
            nodes += page["items"]
        return nodes

    def hold(self) -> dict[str, Any]:
        hold: dict[str, Any] = self._call("GET", "/api/v1/hold")
        return hold

    def approve(self, node_id: str) -> None:
        self._call("POST", f"{_NODES}/{quote(node_id, safe='')}/approve")

    def sign_in_link(self) -> dict[str, Any]:
        link: dict[str, Any] = self._call("POST", "/api/v1/sign-in-links")
        return link

    def _call(self, method: str, path: str) -> Any:
        status, body = self._send(method, path)
        if not _OK <= status < _REDIRECT:
            detail = body.get("detail", "") if isinstance(body, dict) else ""
            raise StackError(
                f"The API answered {method} {path} with {status}: {detail}",
                remedy="Look into logs/api.log of the home.",
            )
        return body

    def _send(self, method: str, path: str) -> tuple[int, Any]:
        address = urlsplit(self._connection.url)
        link = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=_TIMEOUT)
        try:
            link.request(method, path, headers={"Authorization": f"Bearer {self._connection.token()}"})
            response = link.getresponse()
            return response.status, json.loads(response.read() or b"null")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise StackError(
                f"The API at {self._connection.url} does not answer ({error}).",
                remedy="Look into logs/api.log of the home.",
            ) from error
        finally:
            link.close()
