"""Joining: check whom we talk to, register once with the invite, and remember both for every later start."""

import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx2

from agent.durable import write_durably
from agent.identity import Identity, IdentityFile
from agent.machine import machine_id, resources
from agent.registration import NotRegistered, Registrar, Removed
from agent.retirement import Retirement
from agent.settings import AgentSettings
from contracts.node_http import RegisterRequest
from domain.errors import InvalidRequest, NodesmithError, NotSignedIn, ServiceUnavailable
from domain.node import Protocol
from runtime.proxies import api_client
from runtime.trust import fingerprint, trusting

CA_PATH = "/api/ca.pem"
_FILE = "joined.json"
_PREFIX = "NODESMITH_AGENT_"
_TIMEOUT_S = 10.0


def joined_settings(home: Path | None = None) -> AgentSettings:
    """The settings of an agent that joined; what the environment says counts more."""
    place = home or AgentSettings().home
    try:
        kept: dict[str, Any] = json.loads((place / _FILE).read_text())
    except FileNotFoundError:
        kept = {}
    kept = {name: value for name, value in kept.items() if f"{_PREFIX}{name.upper()}" not in os.environ}
    return AgentSettings(**kept, home=place)


async def join(url: str, invite: str, *, home: Path, name: str = "", ca_sha256: str = "") -> Identity:
    """Register with the invite; the home is ready for `nodesmith agent` afterwards."""
    pem = await _checked_ca(url, ca_sha256) if ca_sha256 else ""
    settings = _prepare(url, home=home, name=name, pem=pem)
    identity = await _register(settings, invite)
    Retirement(settings.home).end()
    kept = settings.model_dump_json(include={"url", "name", "ca_file"}, indent=2)
    write_durably(settings.home / _FILE, kept.encode())
    return identity


def _prepare(url: str, *, home: Path, name: str, pem: str) -> AgentSettings:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    place = home.absolute()
    given: dict[str, object] = {"url": url.rstrip("/"), "home": place}
    if name:
        given["name"] = name
    if pem:
        write_durably(place / "ca.pem", pem.encode(), mode=0o644)
        given["ca_file"] = place / "ca.pem"
    return AgentSettings().model_copy(update=given)


async def _checked_ca(url: str, ca_sha256: str) -> str:
    """Whoever answers is believed only if the certificate is the one that the invite names."""
    try:
        async with api_client(url.rstrip("/"), verify=False, timeout=_TIMEOUT_S) as http:
            answer = await http.get(CA_PATH)
        pem = answer.raise_for_status().text
        found = fingerprint(pem)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ServiceUnavailable(f"The certificate of {url} cannot be had: {error!r}") from error
    except ValueError as error:
        raise InvalidRequest(f"What {url} sent is no certificate.") from error
    if found != ca_sha256.replace(":", "").lower():
        raise NotSignedIn(
            f"{url} is not the control plane of this invite: the fingerprint of its CA is {found}, not {ca_sha256}. "
            "Nothing was sent there."
        )
    return pem


async def _register(settings: AgentSettings, invite: str) -> Identity:
    """With the node's own credential if it has one, else with the invite."""
    place = IdentityFile(settings.home)
    async with api_client(settings.url, verify=trusting(settings.ca_file)) as http:
        registrar = Registrar(http, place, token=invite, request=lambda: _request(settings))
        try:
            return await registrar.ask_once()
        except Removed:
            registrar.forget()
            return await _once_more(registrar)
        except NotRegistered as error:
            raise _failure(settings, error) from error


async def _once_more(registrar: Registrar) -> Identity:
    """This machine was removed, and is invited again."""
    try:
        return await registrar.ask_once()
    except NotRegistered as error:
        raise NotSignedIn(str(error)) from error


def _failure(settings: AgentSettings, error: NotRegistered) -> NodesmithError:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return NotSignedIn(
            f"The certificate of {settings.url} is not trusted. The whole line of the invite has --ca-sha256."
        )
    return NotSignedIn(str(error))


def _request(settings: AgentSettings) -> RegisterRequest:
    """Not a boot yet: the agent's process says that of itself."""
    return RegisterRequest(
        **resources(settings.home).model_dump(exclude_none=True),
        name=settings.name,
        protocol=Protocol.NODESMITH,
        machine_id=machine_id(settings.home),
        agent_version=metadata.version("nodesmith"),
    )
