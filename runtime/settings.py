"""Settings of the control plane: one object, built in `main()`, from `NODESMITH_*` and secret files."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.durations import Duration
from contracts.temporal import Policy


class ControlSettings(BaseSettings):
    """What api and worker need. Durations are written 90, 90s, 15m, 24h, 7d, or ISO 8601."""

    model_config = SettingsConfigDict(env_prefix="NODESMITH_", env_nested_delimiter="__", extra="ignore")

    database_url: str = "postgresql://nodesmith@127.0.0.1:15432/nodesmith"
    database_password_file: Path | None = None
    nats_url: str = "nats://127.0.0.1:4222"
    nats_public_url: str | None = None
    """what agents are told; default: nats_url"""
    nats_account_seed_file: Path | None = None
    """signs the credentials of nodes and of the control plane itself"""
    nats_operator_seed_file: Path | None = None
    """with `nats_system_seed_file`: takes the credential of a removed node away at once, not when it ends"""
    nats_system_seed_file: Path | None = None
    nats_credential_lifetime: Duration = timedelta(hours=24)
    temporal_address: str = "127.0.0.1:7233"
    temporal_namespace: str = "default"
    temporal_ui_url: str = "http://127.0.0.1:8233"

    api_host: str = "127.0.0.1"
    api_port: int = 8900
    listen_host: str = ""
    """an address where the API listens too, with TLS, on the same port"""
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    ca_file: Path | None = None
    """the CA behind that certificate: told to nodes that join, trusted by us beside the system's"""
    public_url: str = ""
    """how other machines reach the API, for invites; default: where it listens"""
    trusted_proxies: str = "127.0.0.1"
    """addresses of proxies in front of the API, whose word for a client's address is taken; * is all"""
    admin_token_file: Path | None = None
    registration_token_file: Path | None = None
    sign_in_failures: int = Field(default=30, gt=0)
    """wrong credentials a minute from one address, before it has to wait"""
    auto_approve: bool = False
    """approve every node that registers; for LocalAI fleets only"""

    gallery_folder: Path = Path("gallery")
    """where the api packs the built-in backends, and serves them from"""
    gallery_refresh: Duration = timedelta(hours=1)
    """how often galleries are read again"""
    upload_limit: int = Field(default=50 * 1024**3, gt=0)
    """bytes of an archive that is uploaded"""
    upgrade_check: Duration = timedelta(hours=6)
    """how often registries are asked what the tags of installed backends stand for"""
    auto_upgrade: bool = False
    """upgrade by itself what has a newer build in a gallery"""
    sources_key_file: Path | None = None
    """seals the passwords of `nodesmith sources`; without it none are taken in"""
    uri_schemes: frozenset[str] = frozenset({"file", "http", "https", "oci"})
    """what an install by uri may name; oci is also a reference without a scheme"""
    uri_without_digest: bool = False
    """take archives by uri for which nobody gives a sha256"""
    registry_timeout: Duration = timedelta(seconds=5)
    """what a registry gets to say what a tag stands for, when an install is asked for"""
    policy: Policy = Field(default_factory=Policy)
    """e.g. NODESMITH_POLICY__REQUEST_TIMEOUT=15m"""
    control_slots: int = Field(default=200, gt=0)
    node_slots: int = Field(default=2000, gt=0)
    fleet_tick: Duration = timedelta(seconds=15)
    monitor_check: Duration = timedelta(seconds=15)
    """how often each worker checks that the fleet monitor runs"""
    monitor_silence: Duration = timedelta(minutes=2)
    """a monitor that completes no tick for so long (four ticks at least) is replaced"""
    history_kept: Duration = timedelta(days=90)
    """how long operations and batches are kept after their end"""
    log_level: str = "INFO"

    def secret(self, path: Path | None) -> str:
        """The content of a secret file; empty when none is named."""
        return path.read_text().strip() if path else ""
