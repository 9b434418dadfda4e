"""Which backend each TLS name leads to: on the disk, so that a killed forwarder goes on where it was."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nodesmith.agent.disk.durable_files import Disk, write_durably
from nodesmith.domain.forwarding import server_name


@dataclass(frozen=True)
class ForwardRoute:
    key: str
    """process key of the replica"""
    address: str
    """host:port of the backend, on loopback"""
    is_draining: bool = False
    """no new connections"""


class ForwardRoutes:
    """The routes of one node. Blocking."""

    def __init__(self, file: Path, node_id: str, disk: Disk | None = None) -> None:
        self._file = file
        self._node_id = node_id
        self._disk = disk or Disk()
        self._by_key = {route.key: route for route in _read(file)}
        self._by_name = self._named()

    def find(self, name: str) -> ForwardRoute | None:
        """The route of a TLS server name."""
        return self._by_name.get(name)

    def keys(self) -> list[str]:
        return sorted(self._by_key)

    def put(self, key: str, address: str) -> None:
        self._store({**self._by_key, key: ForwardRoute(key, address)})

    def drain(self, key: str) -> None:
        """Accept no new connections for the replica; the open ones go on."""
        if key in self._by_key:
            self._store({**self._by_key, key: replace(self._by_key[key], is_draining=True)})

    def remove(self, key: str) -> None:
        self._store({name: route for name, route in self._by_key.items() if name != key})

    def _store(self, routes: dict[str, ForwardRoute]) -> None:
        if routes == self._by_key:
            return
        self._disk.make_folder(self._file.parent)
        content = json.dumps([asdict(route) for route in routes.values()]).encode()
        write_durably(self._file, content, disk=self._disk)
        self._by_key = routes
        self._by_name = self._named()

    def _named(self) -> dict[str, ForwardRoute]:
        return {server_name(self._node_id, route.key): route for route in self._by_key.values()}


def _read(file: Path) -> list[ForwardRoute]:
    try:
        return [ForwardRoute(**fields) for fields in json.loads(file.read_bytes())]
    except FileNotFoundError:
        return []
