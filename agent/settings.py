"""Settings of the agent: one object, built in `main()`, from `NODESMITH_AGENT_*` and a secret file."""

import socket
from datetime import timedelta
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.durations import Duration

_MIB = 1024 * 1024


class AgentSettings(BaseSettings):
    """What a node needs to know. Durations are ISO 8601 (PT10S) or seconds, sizes are bytes."""

    model_config = SettingsConfigDict(env_prefix="NODESMITH_AGENT_", extra="ignore", use_attribute_docstrings=True)

    url: str = "http://127.0.0.1:8900"
    """the control plane"""
    token_file: Path | None = None
    """the shared registration token, or an invite: it only admits"""
    ca_file: Path | None = None
    """the control plane's CA, trusted beside the system's"""
    name: str = Field(default_factory=socket.gethostname, min_length=1)
    """the name of this node; it belongs to this machine from the first registration on"""
    home: Path = Path("agent-home")
    """the folder of this node: the only one that it writes to"""

    heartbeat_interval: Duration = timedelta(seconds=10)
    """how often the node says that it is there"""
    progress_interval: Duration = timedelta(milliseconds=250)
    """at most one report of progress in this time"""
    journal_interval: Duration = timedelta(seconds=2)
    """how often phase and bytes of what runs are written down, if they have changed"""
    header_timeout: Duration = timedelta(seconds=30)
    """a source that has not begun to answer after so long is asked again"""
    idle_timeout: Duration = timedelta(seconds=60)
    """a source that sends no byte for so long is asked again"""
    source_tries: int = Field(default=5, gt=0)
    """so often without progress, and the attempt has failed"""
    bandwidth_limit: int = Field(default=0, ge=0)
    """bytes a second, all downloads together; 0 is no limit"""
    disk_headroom: int = Field(default=1024 * _MIB, ge=0)
    """what has to stay free on the disk beside what is fetched and unpacked"""
    disk_headroom_share: float = Field(default=0.05, ge=0, le=1)
    """the same as a share of what is fetched and unpacked, when that is more"""
    require_digest: bool = False
    """refuse archives for which nobody gives a sha256 digest"""
    parallel_operations: int = Field(default=4, gt=0)
    """installs and upgrades of different backends that run at once; the others wait"""
    backend_host: str = "127.0.0.1"
    """where the backends that this agent starts listen"""
    backend_first_port: int = Field(default=21000, gt=0, lt=65536)
    """where the range of their ports begins"""
    backend_last_port: int = Field(default=21999, gt=0, lt=65536)
    """where it ends; this one is still in it"""
    health_timeout: Duration = timedelta(seconds=30)
    """a backend that was started and is not healthy after so long has failed"""
    stop_grace: Duration = timedelta(seconds=30)
    """what a backend gets to finish its work before it is killed, with all its processes"""
    log_limit: int = Field(default=64 * _MIB, ge=64 * 1024)
    """bytes of output that are kept of each backend"""
    keep_backends: bool = True
    """let backends go on when the agent ends; it finds them again when it starts"""
    max_members: int = Field(default=500_000, gt=0)
    """files in one archive, at most"""
    max_unpacked: int = Field(default=512 * 1024 * _MIB, gt=0)
    """bytes that one archive may unpack to"""
    log_level: str = "INFO"
    """of the agent itself: DEBUG, INFO, WARNING"""

    @model_validator(mode="after")
    def _ports_in_order(self) -> Self:
        if self.backend_first_port > self.backend_last_port:
            raise ValueError("The range of backend ports is empty: its first is above its last.")
        return self

    def registration_token(self) -> str:
        return self.token_file.read_text().strip() if self.token_file else ""


def explained() -> list[str]:
    """Every setting, as `nodesmith agent --help` shows it."""
    prefix = AgentSettings.model_config.get("env_prefix", "")
    return [
        f"{prefix}{name.upper()} ({_shown(field.default)})\n    {field.description}"
        for name, field in AgentSettings.model_fields.items()
    ]


def _shown(default: object) -> str:
    if isinstance(default, timedelta):
        return f"{default.total_seconds():g} s"
    if default is None:
        return "none"
    return str(default) if isinstance(default, str | int | float | Path) else "host name"
