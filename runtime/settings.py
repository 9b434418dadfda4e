"""Settings of the control plane, built once in `main()` from `NODESMITH_*` variables and secret files."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from nodesmith.contracts.durations import Duration
from nodesmith.contracts.setting_lists import Names, Networks
from nodesmith.contracts.temporal.operations import Policy
from nodesmith.domain.access import Role
from nodesmith.domain.source_policy import SourcePolicy


class ControlSettings(BaseSettings):
    """Settings of api and worker. Durations are written 90, 90s, 15m, 24h, 7d, or ISO 8601."""

    model_config = SettingsConfigDict(env_prefix="NODESMITH_", env_nested_delimiter="__", extra="ignore")

    database_url: str = "postgresql://nodesmith@127.0.0.1:15432/nodesmith"
    database_password_file: Path | None = None
    nats_url: str = "nats://127.0.0.1:4222"
    nats_public_url: str | None = None
    """the NATS address for agents; default: nats_url"""
    nats_account_seed_file: Path | None = None
    """signs the credentials of nodes and of the control plane itself"""
    nats_operator_seed_file: Path | None = None
    """with `nats_system_seed_file`: revokes the credential of a removed node at once, not at its expiry"""
    nats_system_seed_file: Path | None = None
    nats_credential_lifetime: Duration = timedelta(hours=24)
    temporal_address: str = "127.0.0.1:7233"
    temporal_namespace: str = "default"
    temporal_ca_file: Path | None = None
    """with the next two: TLS to Temporal, with a client certificate"""
    temporal_cert_file: Path | None = None
    temporal_key_file: Path | None = None
    temporal_ui_url: str = "http://127.0.0.1:8233"
    """address of the Temporal Web UI for users, used in links to runs"""
    temporal_ui_server: str = ""
    """address of the Web UI server; the API proxies it at `temporal_ui_port` behind its sign-in; empty: no proxy"""
    temporal_ui_port: int = 8233

    api_host: str = "127.0.0.1"
    api_port: int = 8900
    listen_host: str = ""
    """an additional address where the API listens, with TLS, on the same port"""
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    ca_file: Path | None = None
    """the CA of that certificate: given to joining nodes, and trusted in addition to the system's CAs"""
    public_url: str = ""
    """address of the API for other machines, used in invites; default: where it listens"""
    trusted_proxies: str = ""
    """addresses and networks of proxies in front of the API, whose X-Forwarded-For is trusted; * means all"""
    max_connections: int = Field(default=4000, gt=0)
    """limit of open connections to one api process"""
    max_connections_per_address: int = Field(default=1000, gt=0)
    """limit of those from one address that is not a trusted proxy"""
    gateway_ca_file: Path | None = None
    """CA of gateways and forwarders: with its key, the API signs the certificates of nodes"""
    gateway_ca_key_file: Path | None = None
    """key of that CA, an elliptic-curve key; only the API needs it"""
    order_keys: Path | None = None
    """folder with the keys that sign orders to nodes; every API replica needs the same one, workers need none"""
    new_root: str = ""
    """fingerprint of a root key that replaces a lost one; every node must join again"""
    admin_token_file: Path | None = None
    registration_token_file: Path | None = None
    sign_in_failures: int = Field(default=30, gt=0)
    """wrong credentials per minute from one address before it is throttled"""
    localai_workers: bool = False
    """admit LocalAI workers (protocol 1), which can neither verify orders nor sign reports"""
    pending_nodes: int = Field(default=100, gt=0)
    """limit of nodes that wait for approval; more are refused until some are approved or removed"""
    auto_approve: bool = False
    """approve every node that registers; for LocalAI fleets only"""

    gallery_folder: Path = Path("gallery")
    """folder where the api packs the built-in backends and serves them from"""
    gallery_refresh: Duration = timedelta(hours=1)
    """how often galleries are read again"""
    upload_limit: int = Field(default=50 * 1024**3, gt=0)
    """maximum size of an uploaded archive, in bytes"""
    upgrade_check: Duration = timedelta(hours=6)
    """how often the tags of installed backends are resolved at their registries"""
    auto_upgrade: bool = False
    """upgrade backends automatically when a gallery has a newer build"""
    sources_key_file: Path | None = None
    """key that encrypts the passwords of `nodesmith sources`; without it passwords are refused"""
    uri_schemes: frozenset[str] = frozenset({"file", "http", "https", "oci"})
    """schemes allowed for installs by uri; oci includes references without a scheme"""
    uri_installs: Role = Role.ADMIN
    """the role needed to install by uri"""
    source_hosts: Names = ()
    """allowed source hosts, e.g. ghcr.io,*.example.com; empty: every host"""
    source_networks: Networks = ()
    """allowed source networks that are not public, e.g. 10.0.0.0/8,127.0.0.0/8"""
    source_folders: Names = ()
    """folders below which file:// may read, e.g. /srv/artifacts"""
    uri_without_digest: bool = False
    """accept archives by uri without a sha256"""
    registry_timeout: Duration = timedelta(seconds=5)
    """time limit to resolve a tag at its registry when an install is requested"""
    policy: Policy = Field(default_factory=Policy)
    """e.g. NODESMITH_POLICY__REQUEST_TIMEOUT=15m"""
    control_slots: int = Field(default=200, gt=0)
    node_slots: int = Field(default=2000, gt=0)
    fleet_tick: Duration = timedelta(seconds=15)
    model_tick: Duration = timedelta(seconds=30)
    """how often the model scheduler looks at all models; it also does after every change"""
    monitor_check: Duration = timedelta(seconds=15)
    """how often each worker checks that the fleet monitor and the model scheduler run"""
    monitor_silence: Duration = timedelta(minutes=2)
    """a monitor without a completed tick for this long (at least four ticks) is replaced"""
    history_kept: Duration = timedelta(days=90)
    """how long operations and batches are kept after their end"""
    log_level: str = "INFO"

    def sources(self) -> SourcePolicy:
        return SourcePolicy(self.source_hosts, self.source_networks, self.source_folders)

    def secret(self, path: Path | None) -> str:
        """Return the content of a secret file; empty without a path."""
        return path.read_text().strip() if path else ""
