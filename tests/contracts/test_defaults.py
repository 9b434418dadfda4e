"""Every default that decides how long somebody waits, or how often something is tried: pinned by its value.

The values are written here a second time on purpose. Who changes one changes it in both places, and in the documents.
"""

from datetime import timedelta

import pytest

from nodesmith.contracts.temporal.operations import FleetWatch, OperationInput, Policy
from nodesmith.domain.access import Role
from nodesmith.runtime.settings import ControlSettings
from tests.sources import ENVIRONMENT

POLICY = {
    "wait_for_node": timedelta(days=7),
    "lost_after": timedelta(hours=24),
    "deadline": timedelta(hours=24),
    "request_timeout": timedelta(minutes=15),
    "accept_timeout": timedelta(seconds=5),
    "silence": timedelta(seconds=10),
    "heartbeat_timeout": timedelta(seconds=20),
    "node_poll": timedelta(seconds=60),
    "back_off_first": timedelta(seconds=30),
    "back_off_cap": timedelta(minutes=15),
    "max_attempts": 10,
    "phase_news": timedelta(seconds=10),
    "source_retry": timedelta(seconds=60),
}
WATCH = {
    "tick": timedelta(seconds=15),
    "heartbeat_timeout": timedelta(seconds=15),
    "rest": timedelta(hours=1),
}
SETTINGS = {
    "nats_credential_lifetime": timedelta(hours=24),
    "sign_in_failures": 30,
    "auto_approve": False,
    "pending_nodes": 100,
    "localai_workers": False,
    "gallery_refresh": timedelta(hours=1),
    "upload_limit": 50 * 1024**3,
    "upgrade_check": timedelta(hours=6),
    "auto_upgrade": False,
    "uri_schemes": frozenset({"file", "http", "https", "oci"}),
    "uri_installs": Role.ADMIN,
    "source_hosts": (),
    "source_networks": (),
    "source_folders": (),
    "uri_without_digest": False,
    "registry_timeout": timedelta(seconds=5),
    "control_slots": 200,
    "node_slots": 2000,
    "fleet_tick": timedelta(seconds=15),
    "model_tick": timedelta(seconds=30),
    "monitor_check": timedelta(seconds=15),
    "monitor_silence": timedelta(minutes=2),
    "history_kept": timedelta(days=90),
    "api_host": "127.0.0.1",
    "api_port": 8900,
    "listen_host": "",
    "new_root": "",
    "trusted_proxies": "",
    "max_connections": 4000,
    "max_connections_per_address": 1000,
    "temporal_ui_port": 8233,
    "temporal_ui_server": "",
    "log_level": "INFO",
}
ADDRESSES_AND_SECRETS = {
    *("database_url", "database_password_file", "nats_url", "nats_public_url", "nats_account_seed_file"),
    *("nats_operator_seed_file", "nats_system_seed_file", "temporal_address", "temporal_namespace", "temporal_ui_url"),
    *("tls_cert_file", "tls_key_file", "ca_file", "public_url", "admin_token_file", "registration_token_file"),
    *("gallery_folder", "sources_key_file", "order_keys", "gateway_ca_file", "gateway_ca_key_file"),
    *("temporal_ca_file", "temporal_cert_file", "temporal_key_file"),
}
"""what every installation has of its own"""


def test_every_default_of_the_policy_is_pinned() -> None:
    assert dict(Policy()) == POLICY


def test_run_without_a_policy_has_the_same_one() -> None:
    assert OperationInput.model_fields["policy"].default == Policy(**POLICY)


def test_every_default_of_the_fleet_watch_is_pinned() -> None:
    assert dict(FleetWatch()) == WATCH


@pytest.fixture(autouse=True)
def without_settings_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name)


def test_settings_fill_the_policy_with_these_defaults() -> None:
    assert dict(ControlSettings().policy) == POLICY


def test_every_default_of_the_settings_is_pinned() -> None:
    assert set(ControlSettings.model_fields) == set(SETTINGS) | ADDRESSES_AND_SECRETS | {"policy"}
    settings = ControlSettings()
    assert {name: getattr(settings, name) for name in SETTINGS} == SETTINGS
