"""The embedded PostgreSQL 18: TCP on loopback with a password, no Unix socket, an unprivileged user under root."""

import contextlib
import os
import pwd
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from nodesmith.stack.errors import StackError
from nodesmith.stack.files import write_private
from nodesmith.stack.processes.child import Program, User, run_once
from nodesmith.stack.servers import binaries
from nodesmith.stack.servers.embedded import LOOPBACK

ROLE = "nodesmith"
DATABASE = "nodesmith"
_STATUS_LINE = 7
_IDENTITY = 3
"""lines: pid, folder, time of the start"""


@dataclass
class PostgresServer:
    """A PostgreSQL cluster in `folder`; `settings` are PostgreSQL's configuration parameters."""

    folder: Path
    port: int
    password: str
    log: Path
    database: str = DATABASE
    settings: Mapping[str, str] = field(default_factory=dict)
    name: str = "postgres"
    _stale_identity: list[str] = field(default_factory=list, init=False)
    """identity lines of the pid file that existed before the start"""

    def url(self, database: str = "", *, with_password: bool = True) -> str:
        secret = f":{quote(self.password, safe='')}" if with_password else ""
        return f"postgresql://{ROLE}{secret}@{LOOPBACK}:{self.port}/{database or self.database}"

    async def prepare(self) -> None:
        if not self.folder.exists():
            await self._initialize()
        self._remove_stale_pid_file()
        self._stale_identity = self._pid_file()[:_IDENTITY]

    async def _initialize(self) -> None:
        """Create the cluster in a temporary folder and rename it, so that a kill leaves no partial cluster."""
        fresh = self.folder.with_name(f"{self.folder.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True, mode=0o700)
        password = fresh / "password"
        write_private(password, self.password)
        user = _unprivileged(fresh)
        if user is not None:
            for path in (fresh, password):
                os.chown(path, user.uid, user.gid)
        options = ("--pgdata", str(fresh / "data"), "--username", ROLE, "--encoding", "UTF8", "--no-instructions")
        locale = ("--locale", "C", "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8")
        access = ("--auth", "scram-sha-256", "--pwfile", str(password))
        argv = (_binary("initdb"), *options, *locale, *access)
        await run_once(Program("initdb", argv, self.log, _ENVIRONMENT, _WITHHELD, user=user))
        password.unlink()
        fresh.rename(self.folder)

    def program(self) -> Program:
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "timezone": "UTC",
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return Program(
            self.name,
            (_binary("postgres"), "-D", str(self.folder / "data"), *options),
            self.log,
            _ENVIRONMENT,
            _WITHHELD,
            stop_signal=signal.SIGINT,  # fast shutdown: ends sessions, loses nothing
            death_signal=signal.SIGQUIT,  # immediate shutdown, including its children
            user=_unprivileged(self.folder),
        )

    async def answers(self) -> bool:
        """Read the state from the pid file, as pg_ctl does; ignore the file that a killed postmaster left."""
        lines = self._pid_file()
        if lines[:_IDENTITY] == self._stale_identity:
            return False
        return len(lines) > _STATUS_LINE and lines[_STATUS_LINE].strip() == "ready"

    async def configure(self) -> None:
        await self.create_database(self.database)

    async def create_database(self, name: str, *, template: str = "template1") -> None:
        """Create a database unless it exists."""
        missing = f"NOT EXISTS (SELECT FROM pg_database WHERE datname = '{name}')"
        create = f'CREATE DATABASE "{name}" TEMPLATE "{template}"'
        await self._psql(f"SELECT '{create}' WHERE {missing} \\gexec\n")

    async def _psql(self, script: str) -> str:
        target = ("-h", LOOPBACK, "-p", str(self.port), "-U", ROLE, "-d", "postgres")
        argv = (_binary("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", *target)
        environment = {**_ENVIRONMENT, "PGPASSWORD": self.password}
        return await run_once(
            Program("psql", argv, self.log.with_name("psql.log"), environment, _WITHHELD), stdin=script
        )

    def _pid_file(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return self._pid_path.read_text().splitlines()
        return []

    @property
    def _pid_path(self) -> Path:
        return self.folder / "data" / "postmaster.pid"

    def _remove_stale_pid_file(self) -> None:
        """Remove the pid file of a killed server whose pid another process has now.

        PostgreSQL removes a stale file itself, except when a process of the same user has that pid.
        """
        lines = self._pid_file()
        if lines and not self._is_postmaster(int(lines[0])):
            self._pid_path.unlink(missing_ok=True)

    def _is_postmaster(self, pid: int) -> bool:
        """Whether that process works in the data folder, as its postmaster does; the clock cannot tell, it may be set.

        In doubt it counts as one: PostgreSQL decides then, and two servers on one folder would destroy it.
        """
        try:  # its own path of the folder may differ, because it may run in a mount namespace
            return sys.platform != "linux" or Path(f"/proc/{pid}/cwd").samefile(self.folder / "data")
        except PermissionError:
            return True
        except OSError:
            return False


_ENVIRONMENT = {"LC_ALL": "C", "PGTZ": "UTC"}
_WITHHELD = ("NODESMITH_", "PG")


def _binary(name: str) -> str:
    return str(binaries.postgres_folder() / "bin" / name)


def _unprivileged(folder: Path) -> User | None:
    """Under root, return the data's owner unless it is root, else `nobody`: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    folders = (*binaries.postgres_folders(), folder)
    owner = folder.stat()
    if owner.st_uid != 0:
        return User(owner.st_uid, owner.st_gid, folders)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise StackError(
            "PostgreSQL does not run as root, and this machine has no user `nobody`.",
            remedy="Run nodesmith as a normal user, or set NODESMITH_DATABASE_URL to an external server.",
        ) from None
    return User(nobody.pw_uid, nobody.pw_gid, folders)
