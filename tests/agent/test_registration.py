"""Registration over real HTTP: repeated until approved, stored privately, renewed in time."""

import asyncio
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from nodesmith.agent.forward.certificate import NodeCertificate
from nodesmith.agent.link import registration
from nodesmith.agent.link.node_identity import Identity, IdentityFile
from nodesmith.agent.link.registration import CredentialRefused, NotRegistered, Registrar
from nodesmith.agent.machine import machine_id, resources
from nodesmith.bus.nkeys import KeyPair
from nodesmith.contracts.agent_api import RegisterRequest
from nodesmith.domain.node import Protocol
from nodesmith.runtime.replica_certificates import LIFETIME, ReplicaAuthority
from nodesmith.stack.certificates import Certificates
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
    monkeypatch.setattr(registration, "APPROVAL_POLL_S", 0.01)


async def test_node_uses_its_own_credential_after_the_shared_token_admitted_it(registrar, control_plane: Web):
    identity, is_fresh = await registrar.admit()
    assert (identity.node_id, is_fresh) == (control_plane.nodes["agent-1"].id, True)
    await registrar.register_once()
    bearers = [each["bearer"] for each in control_plane.registrations]
    assert bearers == [control_plane.registration_token, identity.api_token]
    assert control_plane.registrations[0]["protocol"] == 2


async def test_a_pending_node_asks_again_until_it_is_approved(registrar, control_plane: Web):
    control_plane.approves = False
    asking = asyncio.create_task(registrar.admit())
    await until(lambda: len(control_plane.registrations) > 2, pause=0.01)
    assert not asking.done()
    control_plane.approve(control_plane.nodes["agent-1"].id)
    identity, _ = await asyncio.wait_for(asking, 10)
    assert identity.is_admitted(datetime.now(UTC))
    assert len({each["bearer"] for each in control_plane.registrations}) == 2


async def test_stored_identity_is_private_and_sufficient_to_start(registrar, http, tmp_path, control_plane: Web):
    kept, _ = await registrar.admit()
    file = tmp_path / "identity.json"
    assert file.stat().st_mode & 0o777 == 0o600
    async with httpx2.AsyncClient(base_url="http://127.0.0.1:9") as nobody:
        again, is_fresh = await make(nobody, tmp_path, "").admit()
    assert (again, is_fresh) == (kept, False)


async def test_a_credential_the_control_plane_forgot_falls_back_to_the_shared_token(
    registrar, http, tmp_path, control_plane: Web
):
    await registrar.admit()
    control_plane.nodes["agent-1"].credential = "reset by an operator"
    fresh = await registrar.register_once()
    assert fresh.api_token == control_plane.nodes["agent-1"].credential


async def test_wrong_token_reports_the_control_planes_message(http, tmp_path):
    with pytest.raises(CredentialRefused, match="401: The registration token is wrong or missing"):
        await make(http, tmp_path, "wrong").register_once()


async def test_unreachable_control_plane_is_reported(tmp_path):
    async with httpx2.AsyncClient(base_url="http://127.0.0.1:9") as http:
        with pytest.raises(NotRegistered, match="does not answer"):
            await make(http, tmp_path, "token").register_once()


async def test_damaged_identity_is_ignored(http, tmp_path, control_plane: Web):
    (tmp_path / "identity.json").write_text("{")
    identity, _ = await make(http, tmp_path, control_plane.registration_token).admit()
    assert identity.node_id == control_plane.nodes["agent-1"].id


def test_renewal_is_due_after_three_quarters_of_the_life():
    began = datetime(2026, 1, 1, tzinfo=UTC)
    identity = Identity(node_id="n", api_token="t", issued_at=began, expires_at=began + timedelta(hours=24))
    assert identity.renewal_due() == began + timedelta(hours=18)


async def test_pending_response_keeps_the_unexpired_credential(registrar, control_plane: Web):
    admitted, _ = await registrar.admit()
    control_plane.nodes["agent-1"].approved = False
    assert (await registrar.register_once()).nats_jwt == admitted.nats_jwt


def test_machine_id_is_stable_and_hides_the_system_id(tmp_path):
    system = tmp_path / "system-id"
    system.write_text("0123456789abcdef\n")
    generated = machine_id(tmp_path, system)
    assert generated == machine_id(tmp_path, system)
    assert "0123456789abcdef" not in generated
    without = machine_id(tmp_path, tmp_path / "none")
    assert without == machine_id(tmp_path, tmp_path / "none") != generated


def test_resources_are_those_of_the_disk_of_the_home(tmp_path):
    has = resources(tmp_path)
    assert 0 < (has.available_disk or 0) <= (has.total_disk or 0)
    assert 0 < (has.available_ram or 0) <= (has.total_ram or 0)


@pytest.mark.parametrize("asks", ["register_until_admitted", "wait_for_confirmation"])
async def test_agent_honours_retry_after_of_the_control_plane(http, tmp_path, control_plane: Web, asks: str):
    """Regression: a throttled agent that retried every 0.3 s kept itself and its neighbours locked out."""
    control_plane.throttled = ["40", "999999", "not a number"]
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    request = RegisterRequest(name="agent-1", protocol=Protocol.NODESMITH, machine_id="m", boot_id="b")
    token = control_plane.registration_token
    registrar = Registrar(http, IdentityFile(tmp_path), token=token, request=lambda: request, pause=pause)
    assert await getattr(registrar, asks)()
    assert pauses[:2] == [40.0, registration.MAX_RETRY_AFTER_S]
    assert pauses[2] < 1


async def test_agent_generates_its_key_and_sends_only_the_public_part(registrar, http, tmp_path, control_plane: Web):
    identity, _ = await registrar.admit()
    key = KeyPair.from_seed(identity.nats_user_seed)
    await make(http, tmp_path, control_plane.registration_token).register_once()
    assert {each["nats_key"] for each in control_plane.registrations} == {key.public}
    assert identity.nats_user_seed not in str(control_plane.registrations)


async def test_a_node_that_is_not_known_any_more_makes_a_new_key(registrar, control_plane: Web):
    """After a copied, restored or removed home, the old key belongs to another node or was revoked."""
    first, _ = await registrar.admit()
    control_plane.nodes["agent-1"].credential = "of-another-machine"
    second = await registrar.register_once()
    registrar.forget()
    third = await registrar.register_once()
    assert len({each.nats_user_seed for each in (first, second, third)}) == 3
    assert [each["nats_key"] for each in control_plane.registrations] == [
        KeyPair.from_seed(each.nats_user_seed).public for each in (first, second, third)
    ]


async def test_certificate_comes_with_the_registration_and_goes_when_the_control_plane_signs_no_more(
    http, tmp_path, control_plane: Web
):
    files = Certificates(tmp_path / "ca")
    files.ensure_client()
    control_plane.authority = ReplicaAuthority.load(files.ca, files.ca_key)
    certificate, told = NodeCertificate(tmp_path / "forward"), []
    request = RegisterRequest(name="agent-1", protocol=Protocol.NODESMITH, machine_id="m", boot_id="b")
    registrar = Registrar(
        http,
        IdentityFile(tmp_path),
        token=control_plane.registration_token,
        request=lambda: request,
        certificate=certificate,
        on_certificate=lambda: told.append(True),
    )
    identity, _ = await registrar.admit()
    assert certificate.is_for(identity.node_id)
    assert "PRIVATE" not in str(control_plane.registrations), "the key stays on the node"
    long_valid = identity.model_copy(update={"expires_at": datetime.now(UTC) + timedelta(days=365)})
    assert registrar._renewal_due(long_valid) < datetime.now(UTC) + LIFETIME, "renewed before the certificate expires"
    control_plane.authority = None
    await registrar.register_once()
    assert not certificate.is_for(identity.node_id)
    assert told == [True, True]
