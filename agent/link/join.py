"""Joins a node: verifies the control plane, registers with the invite, and stores both for later starts."""

import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx2

from nodesmith.agent.disk.durable_files import write_durably
from nodesmith.agent.link.node_identity import Identity, IdentityFile
from nodesmith.agent.link.pinned_trust import PinFile, PinnedTrust
from nodesmith.agent.link.registration import NotRegistered, Registrar, Removed
from nodesmith.agent.link.retirement import Retirement
from nodesmith.agent.machine import machine_id, resources
from nodesmith.agent.settings import AgentSettings
from nodesmith.contracts.agent_api import RegisterRequest
from nodesmith.domain.errors import InvalidRequest, NodesmithError, NotSignedIn, ServiceUnavailable
from nodesmith.domain.node import Protocol
from nodesmith.runtime.proxies import api_client
from nodesmith.runtime.tls_trust import fingerprint, trusting
from nodesmith.runtime.trust_lists import NotTrusted

CA_PATH = "/api/v1/ca.pem"
_FILE = "joined.json"
_PREFIX = "NODESMITH_AGENT_"
_TIMEOUT_S = 10.0


def joined_settings(home: Path | None = None) -> AgentSettings:
    """Load the settings that `join` stored; environment variables override them."""
    folder = home or AgentSettings().home
    try:
        kept: dict[str, Any] = json.loads((folder / _FILE).read_text())
    except FileNotFoundError:
        kept = {}
    kept = {name: value for name, value in kept.items() if f"{_PREFIX}{name.upper()}" not in os.environ}
    return AgentSettings(**kept, home=folder)


async def join(url: str, invite: str, *, home: Path, name: str = "", ca_sha256: str = "", trust: str = "") -> Identity:
    """Register with the invite and prepare the home for `nodesmith agent`."""
    pem = await _fetch_verified_ca(url, ca_sha256) if ca_sha256 else ""
    settings = _prepare(url, home=home, name=name, pem=pem).model_copy(update={"trust": trust})
    identity = await _register(settings, invite)
    Retirement(settings.home).clear()
    kept = settings.model_dump_json(include={"url", "name", "ca_file"}, indent=2)
    write_durably(settings.home / _FILE, kept.encode())
    return identity


def _prepare(url: str, *, home: Path, name: str, pem: str) -> AgentSettings:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = home.absolute()
    given: dict[str, object] = {"url": url.rstrip("/"), "home": folder}
    if name:
        given["name"] = name
    if pem:
        write_durably(folder / "ca.pem", pem.encode(), mode=0o644)
        given["ca_file"] = folder / "ca.pem"
    return AgentSettings().model_copy(update=given)


async def _fetch_verified_ca(url: str, ca_sha256: str) -> str:
    """Fetch the CA certificate without TLS verification, and accept it only if it matches the invite's fingerprint."""
    try:
        async with api_client(url.rstrip("/"), verify=False, timeout=_TIMEOUT_S) as http:
            answer = await http.get(CA_PATH)
        pem = answer.raise_for_status().text
        found = fingerprint(pem)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ServiceUnavailable(f"The CA certificate of {url} cannot be fetched: {error!r}") from error
    except ValueError as error:
        raise InvalidRequest(f"{url} did not send a valid CA certificate.") from error
    if found != ca_sha256.replace(":", "").lower():
        raise NotSignedIn(
            f"{url} is not the control plane of this invite: the fingerprint of its CA is {found}, not {ca_sha256}. "
            "Nothing was sent there."
        )
    return pem


async def _register(settings: AgentSettings, invite: str) -> Identity:
    """Register with the node's own credential if it has one, else with the invite."""
    identity_file = IdentityFile(settings.home)
    async with api_client(settings.url, verify=trusting(settings.ca_file)) as http:
        trust = PinnedTrust(http, PinFile(settings.home), expected=settings.expected_trust(), may_replace=True)
        try:
            await trust.refresh()
        except NotTrusted as error:
            raise NotSignedIn(str(error)) from error
        registrar = Registrar(http, identity_file, token=invite, request=lambda: _request(settings), trust=trust)
        try:
            return await registrar.register_once()
        except Removed:
            registrar.forget()
            return await _register_after_removal(registrar)
        except NotRegistered as error:
            raise _failure(settings, error) from error


async def _register_after_removal(registrar: Registrar) -> Identity:
    """Register a machine that was removed earlier and has a new invite."""
    try:
        return await registrar.register_once()
    except NotRegistered as error:
        raise NotSignedIn(str(error)) from error


def _failure(settings: AgentSettings, error: NotRegistered) -> NodesmithError:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return NotSignedIn(
            f"The certificate of {settings.url} is not trusted. Use the full join command of the invite: it contains "
            "--ca-sha256."
        )
    return NotSignedIn(str(error))


def _request(settings: AgentSettings) -> RegisterRequest:
    """Build the request without a boot id, which only the agent process has."""
    return RegisterRequest(
        **resources(settings.home).model_dump(exclude_none=True),
        name=settings.name,
        protocol=Protocol.NODESMITH,
        machine_id=machine_id(settings.home),
        agent_version=metadata.version("nodesmith"),
    )
