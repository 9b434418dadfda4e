"""Registration: the shared token admits, a node's own credential authenticates it, and registering never approves."""

import asyncio
import base64
import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from nodesmith.contracts.agent_api import RegisterRequest
from nodesmith.contracts.nats.presence import Heartbeat, StopOrder, StopWhy
from nodesmith.domain.audit_change import ChangeState
from nodesmith.domain.errors import (
    IdentityInUse,
    InvalidRequest,
    NameTaken,
    NodeRemoved,
    NotAllowed,
    NotSignedIn,
    TooManyPending,
    UnknownNode,
)
from nodesmith.domain.forwarding import GATEWAY_NAME, node_name
from nodesmith.domain.node import NodeStatus, Protocol
from nodesmith.runtime.replica_certificates import ReplicaAuthority
from nodesmith.runtime.x509_parts import common_name
from nodesmith.services.nodes.lifecycle import Lifecycle
from nodesmith.services.nodes.registration import CONNECT_TIMEOUT, Registration
from nodesmith.stack.certificates import Certificates
from nodesmith.store.access.audit import AuditTrail
from nodesmith.store.database import Database
from nodesmith.store.nodes.nats_credentials import NatsCredentials
from nodesmith.store.nodes.nodes import Nodes
from tests.fakes.node_link import SimulatedPresence, SimulatedRevocation
from tests.services.conftest import TOKEN, a_nats_key, now, registration_on


def a_node(**changes: object) -> RegisterRequest:
    known = {"name": f"node-{uuid.uuid4()}", "protocol": Protocol.NODESMITH, "machine_id": "m1", "boot_id": "b1"}
    known |= {"nats_key": a_nats_key()}
    return RegisterRequest.model_validate({**known, **changes})


async def test_new_node_waits_for_approval_without_nats_credential(registration: Registration) -> None:
    """R14b: pending until approved; no NATS credential while pending."""
    answer = await registration.register(a_node(), bearer=TOKEN)
    assert answer.status is NodeStatus.PENDING
    assert answer.api_token
    assert answer.nats_jwt is None


async def test_certificate_is_for_the_names_of_the_admitted_node_only(
    registration: Registration, tmp_path: Path
) -> None:
    """The request asks for the name of another node and of a gateway; a node that waits gets no certificate."""
    files = Certificates(tmp_path / "ca")
    files.ensure_client()
    signing = replace(registration, certificates=ReplicaAuthority.load(files.ca, files.ca_key))
    request = a_node(certificate_request=_greedy_request())
    first = await signing.register(request, bearer=TOKEN)
    assert (first.status, first.certificate) == (NodeStatus.PENDING, None)
    await signing.approve(request.name)
    renewed = await signing.register(request, bearer=first.api_token or "")
    found = x509.load_pem_x509_certificate((renewed.certificate or "").encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [node_name(first.id)]
    assert renewed.certificate_ca == files.ca.read_text()
    unsigned = await registration.register(request, bearer=first.api_token or "")
    assert (unsigned.certificate, unsigned.certificate_ca) == (None, None), "no CA: no certificate"


def _greedy_request() -> str:
    names = [x509.DNSName(GATEWAY_NAME), x509.DNSName(node_name("another"))]
    request = x509.CertificateSigningRequestBuilder().subject_name(common_name(GATEWAY_NAME))
    request = request.add_extension(x509.SubjectAlternativeName(names), critical=False)
    made = request.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


async def test_approval_gives_a_credential_and_registering_again_renews_it(registration: Registration) -> None:
    """R16, H7: a renewal keeps id, credential and approval."""
    request = a_node()
    first = await registration.register(request, bearer=TOKEN)
    approved = await registration.approve(request.name)
    assert approved.nats_jwt
    renewed = await registration.register(request, bearer=first.api_token or "")
    assert (renewed.id, renewed.api_token) == (first.id, None)
    assert renewed.nats_jwt


async def test_nodes_beyond_the_limit_wait_until_others_are_approved(registration: Registration) -> None:
    limited = replace(registration, max_pending=await registration.nodes.pending() + 1)
    first, second = a_node(), a_node()
    await limited.register(first, bearer=TOKEN)
    with pytest.raises(TooManyPending):
        await limited.register(second, bearer=TOKEN)
    assert (await limited.register(first, bearer=TOKEN)).status is NodeStatus.PENDING, "it is known already"
    await limited.approve(first.name)
    assert (await limited.register(second, bearer=TOKEN)).status is NodeStatus.PENDING


async def test_registering_again_never_approves(registration: Registration) -> None:
    """H1: approval cannot be bypassed."""
    request = a_node()
    await registration.register(request, bearer=TOKEN)
    assert (await registration.register(request, bearer=TOKEN)).status is NodeStatus.PENDING


async def test_second_approval_is_refused(registration: Registration) -> None:
    """R16."""
    request = a_node()
    await registration.register(request, bearer=TOKEN)
    await registration.approve(request.name)
    with pytest.raises(InvalidRequest, match="does not wait"):
        await registration.approve(request.name)
    with pytest.raises(UnknownNode):
        await registration.approve("nobody")


async def test_a_name_belongs_to_its_machine_and_its_credential(registration: Registration) -> None:
    """R14a, R26: another machine is refused with a remedy, also with a copied credential."""
    request = a_node()
    own = await registration.register(request, bearer=TOKEN)
    for bearer in (TOKEN, own.api_token or ""):
        with pytest.raises(NameTaken, match=f"nodes reset-credential {request.name}"):
            await registration.register(a_node(name=request.name, machine_id="m2"), bearer=bearer)


async def test_a_name_stays_with_its_kind_of_node(registration: Registration) -> None:
    """A LocalAI worker has no machine id: a holder of the shared token could otherwise take over its approval."""
    worker = {"protocol": Protocol.LOCALAI, "address": "h:1", "machine_id": "", "boot_id": ""}
    legacy, own = a_node(**worker), a_node()
    await registration.register(legacy, bearer=TOKEN)
    await registration.register(own, bearer=TOKEN)
    with pytest.raises(NameTaken):
        await registration.register(a_node(name=legacy.name), bearer=TOKEN)
    with pytest.raises(NameTaken):
        await registration.register(a_node(**worker, name=own.name), bearer=TOKEN)


async def test_name_equal_to_another_nodes_id_is_a_separate_node(registration: Registration) -> None:
    """R25, R26."""
    other = await registration.register(a_node(), bearer=TOKEN)
    named_so = await registration.register(a_node(name=other.id, machine_id="m2"), bearer=TOKEN)
    assert named_so.id != other.id


async def test_copied_machine_is_refused_while_the_first_answers(
    registration: Registration, presence: SimulatedPresence, nodes: Nodes
) -> None:
    """Another process with the same name, machine and credential is refused as long as the first answers."""
    request = a_node(boot_id="first")
    own = await registration.register(request, bearer=TOKEN)
    await registration.approve(own.id)
    presence.there = {(own.id, "first")}
    copy = request.model_copy(update={"boot_id": "copy"})
    for bearer in (own.api_token or "", TOKEN):
        with pytest.raises(IdentityInUse, match="another name"):
            await registration.register(copy, bearer=bearer)
    seen = await nodes.find(own.id)
    assert seen is not None
    assert (seen.boot_id, seen.rival_seen_at is not None) == ("first", True)
    await registration.register(request, bearer=own.api_token or "")  # a renewal by the first process is accepted
    presence.there = set()
    await nodes.heartbeats([Heartbeat(node_id=own.id, boot_id="first")], now())
    assert (await registration.register(copy, bearer=own.api_token or "")).nats_jwt


@pytest.mark.parametrize("boot_id", ["", "first"])
async def test_registration_token_does_not_replace_a_node_that_answers_whatever_boot_is_claimed(
    registration: Registration, presence: SimulatedPresence, nodes: Nodes, boot_id: str
) -> None:
    """Machines of one image have one machine id, and every viewer sees the boot id."""
    own = await registration.register(request := a_node(boot_id="first"), bearer=TOKEN)
    await registration.approve(own.id)
    presence.there = {(own.id, "first")}
    keys = await nodes.keys_of([own.id])
    thief = request.model_copy(update={"boot_id": boot_id, "nats_key": a_nats_key()})
    with pytest.raises(IdentityInUse):
        await registration.register(thief, bearer=TOKEN)
    assert await nodes.keys_of([own.id]) == keys
    assert (await registration.register(request, bearer=own.api_token or "")).nats_jwt


async def test_process_that_lost_the_response_to_its_registration_registers_again_at_once(
    registration: Registration,
) -> None:
    lenient, request = replace(registration, auto_approve=True), a_node(boot_id="first")
    await lenient.register(request, bearer=TOKEN)
    assert (await lenient.register(request, bearer=TOKEN)).nats_jwt


async def test_an_approval_by_setting_is_in_the_audit_trail_once(
    registration: Registration, database: Database, nodes: Nodes
) -> None:
    """No person approved the node: the audit trail names the setting as actor."""
    lenient, request, trail = replace(registration, auto_approve=True), a_node(), AuditTrail(database)
    with pytest.raises(NotSignedIn):
        await lenient.register(request, bearer="wrong")
    assert await trail.page(target=request.name) == ([], None)
    own = await lenient.register(request, bearer=TOKEN)
    assert own.nats_jwt
    await lenient.register(request, bearer=own.api_token or "")
    (entry,), _ = await trail.page(target=request.name)
    assert (entry.actor, entry.action, entry.target_id) == ("NODESMITH_AUTO_APPROVE", "nodes.approve", own.id)
    assert (entry.before, entry.outcome) == ({"approved_at": None}, ChangeState.DONE)
    with pytest.raises(NameTaken):
        await lenient.register(a_node(name=request.name, machine_id="m2"), bearer=TOKEN)
    entries, _ = await trail.page(target=request.name)
    assert len(entries) == 1


async def test_only_one_of_two_concurrent_copies_becomes_the_node(
    registration: Registration, nodes: Nodes, lifecycle: Lifecycle
) -> None:
    """Neither is connected yet, so the row decides, in one statement."""
    for number in range(10):
        request = a_node(boot_id="before")
        own = await registration.register(request, bearer=TOKEN)
        await registration.approve(own.id)
        await lifecycle.left(await nodes.find(own.id), boot_id="before")  # type: ignore[arg-type]
        copies = [request.model_copy(update={"boot_id": f"copy-{number}-{which}"}) for which in range(4)]
        asked = (registration.register(copy, bearer=own.api_token or "") for copy in copies)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        admitted = [
            copy.boot_id for copy, answer in zip(copies, answers, strict=True) if not isinstance(answer, Exception)
        ]
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        assert len(admitted) == 1, answers
        assert all(isinstance(each, IdentityInUse) for each in refused), refused
        seen = await nodes.find(own.id)
        assert seen is not None
        assert [seen.boot_id] == admitted


async def test_only_one_of_two_pending_copies_gets_a_nats_credential(registration: Registration, nodes: Nodes) -> None:
    request = a_node(boot_id="one")
    own = await registration.register(request, bearer=TOKEN)
    other = request.model_copy(update={"boot_id": "other"})
    assert (await registration.register(other, bearer=own.api_token or "")).nats_jwt is None
    await registration.approve(own.id)
    answers = await asyncio.gather(
        *(registration.register(each, bearer=own.api_token or "") for each in (request, other)), return_exceptions=True
    )
    assert isinstance(answers[0], IdentityInUse), "the other one asked last before the approval"
    assert not isinstance(answers[1], BaseException)
    assert answers[1].nats_jwt


async def test_process_that_never_connected_is_replaced_after_the_connect_timeout(
    database: Database, registration: Registration, presence: SimulatedPresence
) -> None:
    """It crashed before it connected: the next process waits for the connect timeout and no longer."""
    request = a_node(boot_id="dies")
    own = await registration.register(request, bearer=TOKEN)
    await registration.approve(own.id)
    after = request.model_copy(update={"boot_id": "restarted"})
    with pytest.raises(IdentityInUse, match="just registered"):
        await registration.register(after, bearer=own.api_token or "")
    later = registration_on(database, presence, clock=lambda: now() + CONNECT_TIMEOUT)
    assert (await later.register(after, bearer=own.api_token or "")).nats_jwt


async def test_process_that_connected_and_is_gone_is_replaced_at_once(registration: Registration, nodes: Nodes) -> None:
    request = a_node(boot_id="first")
    own = await registration.register(request, bearer=TOKEN)
    await registration.approve(own.id)
    await nodes.heartbeats([Heartbeat(node_id=own.id, boot_id="first")], now())
    after = request.model_copy(update={"boot_id": "restarted"})
    assert (await registration.register(after, bearer=own.api_token or "")).nats_jwt


async def test_a_reset_frees_the_name_for_another_machine_that_has_to_be_approved(
    registration: Registration, lifecycle: Lifecycle, presence: SimulatedPresence
) -> None:
    """R15: id and history stay, credential, machine and approval are reset; the old process is stopped."""
    request = a_node()
    old = await registration.register(request, bearer=TOKEN)
    await registration.approve(old.id)
    assert "waits for approval" in (await lifecycle.reset_credential(request.name)).message
    assert presence.stop_orders == [(old.id, StopOrder(why=StopWhy.CREDENTIAL_RESET))]
    with pytest.raises(NodeRemoved, match="released"):
        await registration.register(request, bearer=old.api_token or "")
    with pytest.raises(NotSignedIn):
        await registration.authenticate_node(old.id, bearer=old.api_token or "")
    new = await registration.register(a_node(name=request.name, machine_id="m2"), bearer=TOKEN)
    assert (new.id, new.status, new.nats_jwt) == (old.id, NodeStatus.PENDING, None)
    with pytest.raises(NameTaken):
        await registration.register(request, bearer=TOKEN)


async def test_a_wrong_token_admits_no_node(registration: Registration) -> None:
    for bearer in ("", "wrong"):
        with pytest.raises(NotSignedIn):
            await registration.register(a_node(), bearer=bearer)


async def test_a_localai_worker_sends_the_token_in_the_body(registration: Registration) -> None:
    request = RegisterRequest(name=f"localai-{uuid.uuid4()}", address="10.0.0.1:50051", token=TOKEN)
    assert (await registration.register(request, bearer="")).status is NodeStatus.PENDING


async def test_localai_worker_is_authenticated_by_its_id_only(registration: Registration) -> None:
    """H3: the shared token does not authenticate a node by its name."""
    request = a_node(protocol=Protocol.LOCALAI, address="h:1", machine_id="", boot_id="")
    worker = await registration.register(request, bearer=TOKEN)
    assert (await registration.authenticate_node(worker.id, bearer=TOKEN)).id == worker.id
    with pytest.raises(NotSignedIn):
        await registration.authenticate_node(request.name, bearer=TOKEN)


async def test_localai_worker_is_rejected_after_the_setting_is_switched_off(registration: Registration) -> None:
    """A holder of the shared token could otherwise still send heartbeats, drain and leave for it."""
    request = a_node(protocol=Protocol.LOCALAI, address="h:1", machine_id="", boot_id="")
    worker = await registration.register(request, bearer=TOKEN)
    with pytest.raises(NotSignedIn):
        await replace(registration, localai_workers=False).authenticate_node(worker.id, bearer=TOKEN)


async def test_credential_authenticates_only_its_own_node(registration: Registration) -> None:
    """Promise 7, H3."""
    mine, other = a_node(), a_node()
    own = await registration.register(mine, bearer=TOKEN)
    await registration.register(other, bearer=TOKEN)
    assert (await registration.authenticate_node(own.id, bearer=own.api_token or "")).name == mine.name
    for bearer in (own.api_token or "", TOKEN, ""):
        with pytest.raises(NotSignedIn):
            await registration.authenticate_node(other.name, bearer=bearer)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"node_type": "toaster"}, "node_type"),
        ({"protocol": Protocol.LOCALAI, "address": ""}, "address"),
        ({"name": "two\nlines"}, "name"),
        ({"name": "  "}, "name"),
    ],
)
async def test_bad_input_names_the_field(registration: Registration, changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await registration.register(a_node(**changes), bearer=TOKEN)
    assert refused.value.facts["field"] == field


async def test_the_seed_of_an_agent_never_travels(registration: Registration) -> None:
    request = a_node()
    await registration.register(request, bearer=TOKEN)
    approved = await registration.approve(request.name)
    assert approved.nats_jwt
    assert approved.nats_user_seed is None
    assert request.nats_key in _claims(approved.nats_jwt)["sub"]


@pytest.mark.parametrize("key", ["", "U" * 56, "ADLWLIZ7TMHGCH2MQRF2QVP7AKRJ3ZPP5DBKMGFFKRNGWUF3FZT6KXYZ"])
async def test_an_agent_without_a_user_key_is_refused_by_name(registration: Registration, key: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await registration.register(a_node(nats_key=key), bearer=TOKEN)
    assert refused.value.facts["field"] == "nats_key"


async def test_foreign_or_revoked_nats_key_gets_no_credential(registration: Registration, lifecycle: Lifecycle) -> None:
    first = a_node()
    await registration.register(first, bearer=TOKEN)
    await registration.approve(first.name)
    thief = a_node(nats_key=first.nats_key)
    await registration.register(thief, bearer=TOKEN)
    with pytest.raises(IdentityInUse, match="another node"):
        await registration.approve(thief.name)
    await lifecycle.remove(first.name, actor="ada", reason="")
    again = a_node(nats_key=first.nats_key)
    await registration.register(again, bearer=TOKEN)
    with pytest.raises(IdentityInUse, match="was revoked"):
        await registration.approve(again.name)


async def test_new_nats_key_revokes_the_credential_of_the_old_one(
    database: Database, presence: SimulatedPresence
) -> None:
    """A machine was set up again: the credential of the old installation is revoked."""
    reported = SimulatedRevocation()
    registration = replace(registration_on(database, presence), revocation=reported)
    request = a_node()
    first = await registration.register(request, bearer=TOKEN)
    await registration.approve(request.name)
    await registration.register(request, bearer=first.api_token or "")
    assert reported.enforced == 0
    await registration.register(request.model_copy(update={"nats_key": a_nats_key()}), bearer=first.api_token or "")
    assert reported.enforced == 1
    async with NatsCredentials(database).revoked(now()) as revoked:
        assert request.nats_key in revoked


def _claims(jwt: str) -> dict[str, Any]:
    body = jwt.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


async def test_localai_workers_are_refused_unless_an_admin_admits_them(registration: Registration) -> None:
    worker = RegisterRequest(name=f"localai-{uuid.uuid4()}", address="10.0.0.1:50051", token=TOKEN)
    assert (await registration.register(worker, bearer="")).id
    with pytest.raises(NotAllowed, match="NODESMITH_LOCALAI_WORKERS=1"):
        await replace(registration, localai_workers=False).register(worker, bearer="")
