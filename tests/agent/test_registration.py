"""Registration over real HTTP: asked until approved, kept private, renewed in time."""

import asyncio
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from agent import registration
from agent.identity import Identity, IdentityFile
from agent.machine import machine_id, resources
from agent.registration import CredentialRefused, NotRegistered, Registrar
from contracts.node_http import RegisterRequest
from domain.node import Protocol
from tests.agent.waiting import until
from tests.agent.web import Web


@pytest.fixture
async def http(control_plane: Web):
    async with httpx2.AsyncClient(base_url=control_plane.url) as http:
        yield http


@pytest.fixture
def registrar(http, tmp_path, control_plane: Web):
    return make(http, tmp_path, control_plane.registration_token)


def make(http, home, token: str) -> Registrar:
    request = RegisterRequest(name="agent-1", protocol=Protocol.NODESMITH, machine_id="m", boot_id="b")
    return Registrar(http, IdentityFile(home), token=token, request=lambda: request)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(registration, "ASK_AGAIN_S", 0.01)


async def test_the_shared_token_admits_and_from_then_on_the_node_speaks_for_itself(registrar, control_plane: Web):
    identity, is_fresh = await registrar.admitted()
    assert (identity.node_id, is_fresh) == (control_plane.nodes["agent-1"].id, True)
    await registrar.ask_once()
    bearers = [each["bearer"] for each in control_plane.registrations]
    assert bearers == [control_plane.registration_token, identity.api_token]
    assert control_plane.registrations[0]["protocol"] == 2


async def test_a_pending_node_asks_again_until_it_is_approved(registrar, control_plane: Web):
    control_plane.approves = False
    asking = asyncio.create_task(registrar.admitted())
    await until(lambda: len(control_plane.registrations) > 2, pause=0.01)
    assert not asking.done()
    control_plane.approve(control_plane.nodes["agent-1"].id)
    identity, _ = await asyncio.wait_for(asking, 10)
    assert identity.is_admitted(datetime.now(UTC))
    assert len({each["bearer"] for each in control_plane.registrations}) == 2


async def test_what_is_kept_is_private_and_enough_to_begin_with(registrar, http, tmp_path, control_plane: Web):
    kept, _ = await registrar.admitted()
    file = tmp_path / "identity.json"
    assert file.stat().st_mode & 0o777 == 0o600
    async with httpx2.AsyncClient(base_url="http://127.0.0.1:9") as nobody:
        again, is_fresh = await make(nobody, tmp_path, "").admitted()
    assert (again, is_fresh) == (kept, False)


async def test_a_credential_the_control_plane_forgot_falls_back_to_the_shared_token(
    registrar, http, tmp_path, control_plane: Web
):
    await registrar.admitted()
    control_plane.nodes["agent-1"].credential = "reset by an operator"
    fresh = await registrar.ask_once()
    assert fresh.api_token == control_plane.nodes["agent-1"].credential


async def test_a_wrong_token_is_told_in_the_control_planes_words(http, tmp_path):
    with pytest.raises(CredentialRefused, match="401: The registration token is wrong or missing"):
        await make(http, tmp_path, "wrong").ask_once()


async def test_a_control_plane_that_is_away_is_no_crash(tmp_path):
    async with httpx2.AsyncClient(base_url="http://127.0.0.1:9") as http:
        with pytest.raises(NotRegistered, match="does not answer"):
            await make(http, tmp_path, "token").ask_once()


async def test_a_damaged_identity_is_as_good_as_none(http, tmp_path, control_plane: Web):
    (tmp_path / "identity.json").write_text("{")
    identity, _ = await make(http, tmp_path, control_plane.registration_token).admitted()
    assert identity.node_id == control_plane.nodes["agent-1"].id


def test_renewal_is_due_after_three_quarters_of_the_life():
    began = datetime(2026, 1, 1, tzinfo=UTC)
    identity = Identity(node_id="n", api_token="t", issued_at=began, expires_at=began + timedelta(hours=24))
    assert identity.renewal_due() == began + timedelta(hours=18)


async def test_an_answer_while_pending_does_not_take_away_what_still_lives(registrar, control_plane: Web):
    admitted, _ = await registrar.admitted()
    control_plane.nodes["agent-1"].approved = False
    assert (await registrar.ask_once()).nats_jwt == admitted.nats_jwt


def test_a_machine_keeps_its_id_and_does_not_tell_the_systems_own(tmp_path):
    system = tmp_path / "system-id"
    system.write_text("0123456789abcdef\n")
    told = machine_id(tmp_path, system)
    assert told == machine_id(tmp_path, system)
    assert "0123456789abcdef" not in told
    without = machine_id(tmp_path, tmp_path / "none")
    assert without == machine_id(tmp_path, tmp_path / "none") != told


def test_resources_are_those_of_the_disk_of_the_home(tmp_path):
    has = resources(tmp_path)
    assert 0 < (has.available_disk or 0) <= (has.total_disk or 0)
    assert 0 < (has.available_ram or 0) <= (has.total_ram or 0)
