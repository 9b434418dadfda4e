"""The home folder: how it is found, its layout, and the file that tells local clients where the API is."""

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path

from nodesmith.stack.errors import StackError
from nodesmith.stack.files import read_json, write_private

NAME = ".nodesmith"
SPACE_FOR_NEW_HOME = 100 * 1024 * 1024
SPACE_TO_START = 4 * 1024 * 1024
"""free bytes that a start requires"""


def find_home(chosen: Path | None = None) -> Path:
    """Return the option, else $NODESMITH_HOME, else the nearest .nodesmith here or in a parent, else ~/.nodesmith."""
    if chosen is not None:
        return chosen.expanduser().absolute()
    named = os.environ.get("NODESMITH_HOME")
    if named:
        return Path(named).expanduser().absolute()
    here = Path.cwd()
    nearest = (folder / NAME for folder in (here, *here.parents) if (folder / NAME).is_dir())
    return next(nearest, Path.home() / NAME)


@dataclass(frozen=True)
class Connection:
    """How a client on this machine reaches the API and Temporal."""

    url: str
    token_file: Path
    temporal_ui_url: str = ""
    gateway_url: str = ""
    ca_file: Path | None = None
    temporal_address: str = ""
    """of the embedded Temporal server"""
    temporal_certificates: Path | None = None
    """folder of the client certificates; None when Temporal requires none"""

    def token(self) -> str:
        return self.token_file.read_text().strip()


@dataclass(frozen=True)
class Home:
    """The folder with all state of one stack, accessible to its owner only."""

    folder: Path

    def create(self) -> bool:
        """Create the folders; return True on the first start."""
        try:
            fresh = not self.connection_file.exists()
            for folder in (self.folder, self.secrets, self.logs, self.agents):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.secrets.chmod(0o700)
        except OSError as error:
            raise self.unusable(error) from error
        self._check_free_space(SPACE_FOR_NEW_HOME if fresh else SPACE_TO_START)
        return fresh

    def unusable(self, error: OSError) -> StackError:
        if error.errno == errno.ENOSPC:
            return _no_space(self.folder, error.strerror or "")
        return StackError(
            f"The home folder {self.folder} cannot be used: {error.strerror}.",
            remedy="Choose another with --home, or become its owner.",
        )

    def is_full(self) -> bool:
        return self._free_bytes() < SPACE_TO_START

    def _check_free_space(self, needed: int) -> None:
        if (free := self._free_bytes()) < needed:
            shortage = f"{free // 1024**2} MB are free, and a start needs {needed // 1024**2} MB"
            raise _no_space(self.folder, f"no space left: {shortage}")

    def _free_bytes(self) -> int:
        disk = os.statvfs(self.folder)
        return disk.f_frsize * (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail)

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def agents(self) -> Path:
        return self.folder / "agents"

    @property
    def gallery(self) -> Path:
        return self.folder / "gallery"

    @property
    def postgres(self) -> Path:
        return self.folder / "postgres"

    @property
    def nats(self) -> Path:
        return self.folder / "nats"

    @property
    def temporal_database(self) -> Path:
        return self.folder / "temporal" / "temporal.db"

    @property
    def temporal_certificates(self) -> Path:
        return self.folder / "temporal" / "tls"

    @property
    def gateway_certificates(self) -> Path:
        return self.folder / "gateway-tls"

    @property
    def certificates(self) -> Path:
        return self.folder / "tls"

    @property
    def ports_file(self) -> Path:
        return self.folder / "ports.json"

    @property
    def connection_file(self) -> Path:
        return self.folder / "connection.json"

    @property
    def processes_file(self) -> Path:
        return self.folder / "processes.json"

    @property
    def lock_file(self) -> Path:
        return self.folder / "up.pid"

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    def secret(self, name: str) -> Path:
        return self.secrets / name

    def write_connection(self, connection: Connection) -> None:
        fields = {
            "url": connection.url,
            "temporal_ui_url": connection.temporal_ui_url,
            "gateway_url": connection.gateway_url,
            "token_file": str(connection.token_file.relative_to(self.folder)),
        }
        if connection.ca_file is not None:
            fields["ca_file"] = str(connection.ca_file.relative_to(self.folder))
        if connection.temporal_address:
            fields["temporal_address"] = connection.temporal_address
        if connection.temporal_certificates is not None:
            fields["temporal_certificates"] = str(connection.temporal_certificates.relative_to(self.folder))
        write_private(self.connection_file, json.dumps(fields, indent=2) + "\n")

    def connection(self) -> Connection | None:
        """Read the connection that the last `up` wrote; None when there was none."""
        fields = read_json(self.connection_file)
        if fields is None:
            return None
        return Connection(
            url=fields["url"],
            token_file=self.folder / fields["token_file"],
            temporal_ui_url=fields.get("temporal_ui_url", ""),
            gateway_url=fields.get("gateway_url", ""),
            ca_file=self._optional_path(fields, "ca_file"),
            temporal_address=fields.get("temporal_address", ""),
            temporal_certificates=self._optional_path(fields, "temporal_certificates"),
        )

    def _optional_path(self, fields: dict[str, str], name: str) -> Path | None:
        return self.folder / fields[name] if name in fields else None


def _no_space(folder: Path, why: str) -> StackError:
    return StackError(
        f"The disk of the home folder {folder} is full ({why}).",
        remedy="Free some space there, or choose a home on another disk with --home.",
    )
