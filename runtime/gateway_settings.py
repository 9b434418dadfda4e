"""Settings of the gateway, built once in `main()`. It shares the variables of the control plane that it needs."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from nodesmith.contracts.durations import Duration

_MIB = 1024 * 1024


class GatewaySettings(BaseSettings):
    """Settings of the gateway. Durations are written 90, 90s, 15m, 24h, 7d, or ISO 8601; sizes are bytes."""

    model_config = SettingsConfigDict(env_prefix="NODESMITH_", extra="ignore")

    database_url: str = "postgresql://nodesmith@127.0.0.1:15432/nodesmith"
    database_password_file: Path | None = None
    admin_token_file: Path | None = None
    """its token may call models too"""
    log_level: str = "INFO"
    listen_host: str = ""
    """an additional address where the gateway listens, with TLS, on the same port"""
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    trusted_proxies: str = ""
    """addresses and networks of proxies, which may open any number of connections; * means all"""
    max_connections: int = Field(default=4000, gt=0)
    """limit of open connections of clients"""
    max_connections_per_address: int = Field(default=1000, gt=0)
    """limit of those from one address that is not a trusted proxy"""

    gateway_host: str = "127.0.0.1"
    gateway_port: int = Field(default=8901, ge=0, lt=65536)
    gateway_wait: Duration = timedelta(seconds=60)
    """how long a call waits for a replica before it gets a 503"""
    gateway_queue: int = Field(default=256, gt=0)
    """calls that wait for one model; more get a 429"""
    gateway_replica_calls: int = Field(default=256, gt=0)
    """calls of this gateway at one replica; more wait"""
    gateway_key_calls: int = Field(default=256, gt=0)
    """open calls of one API key; more get a 429"""
    gateway_answer_timeout: Duration = timedelta(minutes=10)
    """a replica that sends nothing for this long is given up: 504"""
    gateway_grace: Duration = timedelta(seconds=30)
    """time for open calls to finish when the gateway is stopped"""
    gateway_buffer: int = Field(default=8 * _MIB, gt=0)
    """the largest body that is kept in memory and may be sent to a second replica; larger ones go to a file"""
    gateway_memory: int = Field(default=256 * _MIB, gt=0)
    """memory of all bodies together; beyond it small ones go to files too"""
    gateway_largest_body: int = Field(default=1024 * _MIB, gt=0)
    """the largest body that is accepted"""
    gateway_disk: int = Field(default=10 * 1024 * _MIB, gt=0)
    """files of all bodies together; beyond it large bodies get a 503"""
    gateway_spool_folder: Path | None = None
    """where those files are; default: the system's folder for temporary files"""
    gateway_cert_file: Path | None = None
    """with the next two: the certificate that this gateway shows to the forwarders of nodes"""
    gateway_key_file: Path | None = None
    gateway_ca_file: Path | None = None
    """CA of the forwarders"""

    def secret(self, path: Path | None) -> str:
        """Return the content of a secret file; empty without a path."""
        return path.read_text().strip() if path else ""
