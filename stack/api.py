"""The few questions that `up` and `status` ask the API, with the standard library only: the parent stays light."""

import http.client
import json
from typing import Any
from urllib.parse import quote, urlsplit

from stack.errors import StackError
from stack.home import Connection

_TIMEOUT = 5.0
_OK = 200
_REDIRECT = 300


class LocalApi:
    """The API of this home, asked with the admin token."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ready(self) -> bool:
        try:
            status, _ = self._send("GET", "/readyz")
        except StackError:
            return False
        return status == _OK

    def nodes(self) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = self._ask("GET", "/api/nodes")
        return nodes

    def hold(self) -> dict[str, Any]:
        hold: dict[str, Any] = self._ask("GET", "/api/hold")
        return hold

    def approve(self, node_id: str) -> None:
        self._ask("POST", f"/api/nodes/{quote(node_id, safe='')}/approve")

    def sign_in_link(self) -> dict[str, Any]:
        link: dict[str, Any] = self._ask("POST", "/api/sign-in-links")
        return link

    def _ask(self, method: str, path: str) -> Any:
        status, answer = self._send(method, path)
        if not _OK <= status < _REDIRECT:
            detail = answer.get("detail", "") if isinstance(answer, dict) else ""
            raise StackError(
                f"The API answered {method} {path} with {status}: {detail}",
                remedy="Look into logs/api.log of the home.",
            )
        return answer

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
