"""Settings of the agent: one object, built in `main()` from `NODESMITH_AGENT_*` variables and a secret file."""

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from nodesmith.agent.run.confinement import Mode
from nodesmith.contracts.durations import Duration
from nodesmith.contracts.setting_lists import Networks
from nodesmith.domain.source_policy import SourcePolicy

_MIB = 1024 * 1024


def _split(separator: str) -> BeforeValidator:
    def split(value: object) -> object:
        return [part for part in value.split(separator) if part] if isinstance(value, str) else value

    return BeforeValidator(split)


Paths = Annotated[tuple[Path, ...], NoDecode, _split(os.pathsep)]
Names = Annotated[tuple[str, ...], NoDecode, _split(",")]


class AgentSettings(BaseSettings):
    """Configuration of one node. Durations are ISO 8601 (PT10S) or seconds, sizes are bytes."""

    model_config = SettingsConfigDict(env_prefix="NODESMITH_AGENT_", extra="ignore", use_attribute_docstrings=True)

    url: str = "http://127.0.0.1:8900"
    """URL of the control plane's API"""
    token_file: Path | None = None
    """file with the shared registration token or an invite; used only to register"""
    ca_file: Path | None = None
    """the control plane's CA, trusted in addition to the system's CAs"""
    trust: str = ""
    """fingerprint of the control plane's root key, sha256:...; without it the first contact needs https or loopback"""
    trust_file: Path | None = None
    """file with that fingerprint"""
    name: str = Field(default_factory=socket.gethostname, min_length=1)
    """name of this node, bound to this machine at the first registration"""
    home: Path = Path("agent-home")
    """data folder of the agent, the only one it writes to"""

    heartbeat_interval: Duration = timedelta(seconds=10)
    """interval between heartbeats"""
    trust_interval: Duration = timedelta(minutes=15)
    """how often the node fetches the control plane's keys; changes are also announced to it"""
    progress_interval: Duration = timedelta(milliseconds=250)
    """minimum time between two progress reports"""
    journal_interval: Duration = timedelta(seconds=2)
    """how often changed progress of running operations is written to the journal"""
    header_timeout: Duration = timedelta(seconds=30)
    """retry a source that has not begun to answer after this time"""
    idle_timeout: Duration = timedelta(seconds=60)
    """retry a source that sends no byte for this time"""
    source_tries: int = Field(default=5, gt=0)
    """tries without progress after which a download fails"""
    bandwidth_limit: int = Field(default=0, ge=0)
    """bytes per second for all downloads together; 0 is no limit"""
    disk_headroom: int = Field(default=1024 * _MIB, ge=0)
    """bytes to keep free on the disk in addition to what is fetched and unpacked"""
    disk_headroom_share: float = Field(default=0.05, ge=0, le=1)
    """the same as a share of what is fetched and unpacked; the larger one applies"""
    source_hosts: Names = ()
    """hosts this node may fetch from, e.g. ghcr.io,*.example.com; empty: every host"""
    source_networks: Networks = ()
    """private networks this node may fetch from, e.g. 10.0.0.0/8; the control plane is always allowed"""
    source_folders: Names = ()
    """folders that file:// may read from, e.g. /srv/artifacts"""
    require_digest: bool = False
    """refuse archives without a sha256 digest"""
    parallel_operations: int = Field(default=4, gt=0)
    """installs and upgrades of different backends that run concurrently; further ones wait"""
    backend_host: str = "127.0.0.1"
    """address on which backends listen"""
    backend_first_port: int = Field(default=21000, gt=0, lt=65536)
    """first port for backends"""
    backend_last_port: int = Field(default=21999, gt=0, lt=65536)
    """last port for backends, inclusive"""
    forwarder: bool = True
    """gateways reach models through this node's forwarder, with TLS, if the control plane signs its certificate"""
    forward_host: str = ""
    """address at which gateways reach the forwarder; empty: the one from which this node reaches the control plane"""
    forward_listen: str = ""
    """address on which the forwarder listens, if it is another one"""
    forward_first_port: int = Field(default=23000, gt=0, lt=65536)
    """port of the forwarder; the next free one if another program has it"""
    forward_last_port: int = Field(default=23099, gt=0, lt=65536)
    """last port that it may take; the same as the first: no other"""
    health_timeout: Duration = timedelta(seconds=30)
    """a started backend that is not healthy after this time has failed"""
    stop_grace: Duration = timedelta(seconds=30)
    """time a backend gets to finish its work before it is killed with all its processes"""
    log_limit: int = Field(default=64 * _MIB, ge=64 * 1024)
    """bytes of log output kept per backend"""
    keep_backends: bool = True
    """keep backends running when the agent stops; it adopts them at the next start"""
    backend_confinement: Mode = Mode.ON
    """on: hide other files from backends as far as the kernel can; off; require: start none if it cannot"""
    backend_user: str = ""
    """user (name, uid or uid:gid) of backends; needs root; empty: nodesmith-backend if it exists; none: the agent's"""
    backend_read: Paths = ()
    """additional paths that backends may read and execute, such as model folders; separated by colons"""
    backend_write: Paths = ()
    """additional paths that backends may write to"""
    backend_hidden: Paths = ()
    """paths hidden from backends even below a readable one; the agent's home is always hidden"""
    backend_environment: Names = ()
    """additional variables of the agent's environment that backends receive; separated by commas"""
    model_files_kept: Duration = timedelta(days=1)
    """how long files of models without a replica are kept for the next load; at most until the disk is full"""
    max_members: int = Field(default=500_000, gt=0)
    """maximum number of files in one archive"""
    max_unpacked: int = Field(default=512 * 1024 * _MIB, gt=0)
    """maximum unpacked size of one archive in bytes"""
    log_level: str = "INFO"
    """log level of the agent: DEBUG, INFO, WARNING"""

    @model_validator(mode="after")
    def _ports_in_order(self) -> Self:
        if self.backend_first_port > self.backend_last_port:
            raise ValueError("The range of backend ports is empty: BACKEND_FIRST_PORT is above BACKEND_LAST_PORT.")
        if self.forward_first_port > self.forward_last_port:
            raise ValueError("The range of forwarder ports is empty: FORWARD_FIRST_PORT is above FORWARD_LAST_PORT.")
        return self

    def expected_trust(self) -> str:
        return self.trust or (self.trust_file.read_text().strip() if self.trust_file else "")

    def sources(self) -> SourcePolicy:
        return SourcePolicy(self.source_hosts, self.source_networks, self.source_folders)

    def registration_token(self) -> str:
        return self.token_file.read_text().strip() if self.token_file else ""


def explained() -> list[str]:
    """Return one help text per setting, for `nodesmith agent --help`."""
    prefix = AgentSettings.model_config.get("env_prefix", "")
    return [
        f"{prefix}{name.upper()} ({_format_default(field.default)})\n    {field.description}"
        for name, field in AgentSettings.model_fields.items()
    ]


def _format_default(default: object) -> str:
    if isinstance(default, timedelta):
        return f"{default.total_seconds():g} s"
    if default is None or default in ("", ()):
        return "none"
    return str(default) if isinstance(default, str | int | float | Path) else "host name"
