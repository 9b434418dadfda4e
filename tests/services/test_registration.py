"""Registration: the shared token admits, a node's own credential acts for itself, an approval is never given here."""

import asyncio
import uuid
from dataclasses import replace

import pytest

from contracts.messages import Heartbeat, StopOrder, StopWhy
from contracts.node_http import RegisterRequest
from domain.change import Known
from domain.errors import IdentityInUse, InvalidRequest, NameTaken, NodeRemoved, NotSignedIn, UnknownNode
from domain.node import NodeStatus, Protocol
from services.lifecycle import Lifecycle
from services.registration import LINKS_WITHIN, Registration
from store.audit import AuditTrail
from store.database import Database
from store.nodes import Nodes
from tests.services.conftest import TOKEN, now, registration_on
from tests.services.links import PlayedPresence


def a_node(**changes: object) -> RegisterRequest:
    known = {"name": f"node-{uuid.uuid4()}", "protocol": Protocol.NODESMITH, "machine_id": "m1", "boot_id": "b1"}
    return RegisterRequest.model_validate({**known, **changes})


async def test_a_new_node_waits_for_approval_and_gets_no_voice_on_the_bus(registration: Registration) -> None:
    """R14b: pending until approved; no NATS credential while pending."""
    answer = await registration.register(a_node(), bearer=TOKEN)
    assert answer.status is NodeStatus.PENDING
    assert answer.api_token
    assert answer.nats_jwt is None


async def test_approval_gives_a_credential_and_registering_again_renews_it(registration: Registration) -> None:
    """R16, H7: a renewal keeps id, credential and approval."""
    request = a_node()
    first = await registration.register(request, bearer=TOKEN)
    approved = await registration.approve(request.name)
    assert approved.nats_jwt
    renewed = await registration.register(request, bearer=first.api_token or "")
    assert (renewed.id, renewed.api_token) == (first.id, None)
    assert renewed.nats_jwt


async def test_registering_again_never_approves(registration: Registration) -> None:
    """H1: approval cannot be bypassed."""
    request = a_node()
    await registration.register(request, bearer=TOKEN)
    assert (await registration.register(request, bearer=TOKEN)).status is NodeStatus.PENDING


async def test_approving_twice_is_told(registration: Registration) -> None:
    """R16."""
    request = a_node()
    await registration.register(request, bearer=TOKEN)
    await registration.approve(request.name)
    with pytest.raises(InvalidRequest, match="does not wait"):
        await registration.approve(request.name)
    with pytest.raises(UnknownNode):
        await registration.approve("nobody")


async def test_a_name_belongs_to_its_machine_and_its_credential(registration: Registration) -> None:
    """R14a, R26: another machine is refused with what to do, also when it shows a copied credential."""
    request = a_node()
    own = await registration.register(request, bearer=TOKEN)
    for bearer in (TOKEN, own.api_token or ""):
        with pytest.raises(NameTaken, match=f"nodes reset-credential {request.name}"):
            await registration.register(a_node(name=request.name, machine_id="m2"), bearer=bearer)


async def test_a_name_stays_with_its_kind_of_node(registration: Registration) -> None:
    """A LocalAI worker proves no machine: whoever has the shared token could otherwise take its approval over."""
    worker = {"protocol": Protocol.LOCALAI, "address": "h:1", "machine_id": "", "boot_id": ""}
    legacy, own = a_node(**worker), a_node()
    await registration.register(legacy, bearer=TOKEN)
    await registration.register(own, bearer=TOKEN)
    with pytest.raises(NameTaken):
        await registration.register(a_node(name=legacy.name), bearer=TOKEN)
    with pytest.raises(NameTaken):
        await registration.register(a_node(**worker, name=own.name), bearer=TOKEN)


async def test_an_id_chosen_as_a_name_is_a_node_of_its_own(registration: Registration) -> None:
    """R25, R26."""
    other = await registration.register(a_node(), bearer=TOKEN)
    named_so = await registration.register(a_node(name=other.id, machine_id="m2"), bearer=TOKEN)
    assert named_so.id != other.id


async def test_of_two_copies_of_one_machine_only_the_first_is_the_node(
    registration: Registration, presence: PlayedPresence, nodes: Nodes
) -> None:
    """Same name, same machine, same credential, another process: refused as long as the first one answers."""
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
    await registration.register(request, bearer=own.api_token or "")  # a renewal of the first is no rival
    presence.there = set()
    await nodes.heartbeats([Heartbeat(node_id=own.id, boot_id="first")], now())
    assert (await registration.register(copy, bearer=own.api_token or "")).nats_jwt


async def test_an_approval_by_setting_is_in_the_audit_trail_once(
    registration: Registration, database: Database, nodes: Nodes
) -> None:
    """Nobody looked at the node: the trail says who it was that did not."""
    lenient, request, trail = replace(registration, auto_approve=True), a_node(), AuditTrail(database)
    with pytest.raises(NotSignedIn):
        await lenient.register(request, bearer="wrong")
    assert await trail.entries(target=request.name) == []
    own = await lenient.register(request, bearer=TOKEN)
    assert own.nats_jwt
    await lenient.register(request, bearer=own.api_token or "")
    (entry,) = await trail.entries(target=request.name)
    assert (entry.actor, entry.action, entry.target_id) == ("NODESMITH_AUTO_APPROVE", "nodes.approve", own.id)
    assert (entry.before, entry.outcome) == ({"approved_at": None}, Known.DONE)
    with pytest.raises(NameTaken):
        await lenient.register(a_node(name=request.name, machine_id="m2"), bearer=TOKEN)
    assert len(await trail.entries(target=request.name)) == 1


async def test_of_two_copies_that_start_at_the_same_instant_one_is_the_node(
    registration: Registration, nodes: Nodes, lifecycle: Lifecycle
) -> None:
    """Neither can be asked whether it is there yet: the row decides, in one statement."""
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


async def test_of_two_copies_that_wait_for_approval_one_gets_a_voice(registration: Registration, nodes: Nodes) -> None:
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


async def test_a_process_that_registered_and_was_never_heard_makes_room(
    database: Database, registration: Registration, presence: PlayedPresence
) -> None:
    """It died on its way to the bus: the next one waits for as long as a link takes, no longer."""
    request = a_node(boot_id="dies")
    own = await registration.register(request, bearer=TOKEN)
    await registration.approve(own.id)
    after = request.model_copy(update={"boot_id": "restarted"})
    with pytest.raises(IdentityInUse, match="a moment ago"):
        await registration.register(after, bearer=own.api_token or "")
    later = registration_on(database, presence, clock=lambda: now() + LINKS_WITHIN)
    assert (await later.register(after, bearer=own.api_token or "")).nats_jwt


async def test_a_process_that_was_heard_and_is_gone_makes_room_at_once(
    registration: Registration, nodes: Nodes
) -> None:
    request = a_node(boot_id="first")
    own = await registration.register(request, bearer=TOKEN)
    await registration.approve(own.id)
    await nodes.heartbeats([Heartbeat(node_id=own.id, boot_id="first")], now())
    after = request.model_copy(update={"boot_id": "restarted"})
    assert (await registration.register(after, bearer=own.api_token or "")).nats_jwt


async def test_a_reset_frees_the_name_for_another_machine_that_has_to_be_approved(
    registration: Registration, lifecycle: Lifecycle, presence: PlayedPresence
) -> None:
    """R15: id and history stay, credential, machine and approval go; the old process is told, now or later."""
    request = a_node()
    old = await registration.register(request, bearer=TOKEN)
    await registration.approve(old.id)
    assert "waits for approval" in (await lifecycle.reset_credential(request.name)).message
    assert presence.told == [(old.id, StopOrder(why=StopWhy.CREDENTIAL_RESET))]
    with pytest.raises(NodeRemoved, match="given free"):
        await registration.register(request, bearer=old.api_token or "")
    with pytest.raises(NotSignedIn):
        await registration.speaks_for(old.id, bearer=old.api_token or "")
    new = await registration.register(a_node(name=request.name, machine_id="m2"), bearer=TOKEN)
    assert (new.id, new.status, new.nats_jwt) == (old.id, NodeStatus.PENDING, None)
    with pytest.raises(NameTaken):
        await registration.register(request, bearer=TOKEN)


async def test_a_wrong_token_admits_nobody(registration: Registration) -> None:
    for bearer in ("", "wrong"):
        with pytest.raises(NotSignedIn):
            await registration.register(a_node(), bearer=bearer)


async def test_a_localai_worker_sends_the_token_in_the_body(registration: Registration) -> None:
    request = RegisterRequest(name=f"localai-{uuid.uuid4()}", address="10.0.0.1:50051", token=TOKEN)
    assert (await registration.register(request, bearer="")).status is NodeStatus.PENDING


async def test_a_localai_worker_is_believed_by_its_id_only(registration: Registration) -> None:
    """H3: the shared token acts for no node that is merely named."""
    request = a_node(protocol=Protocol.LOCALAI, address="h:1", machine_id="", boot_id="")
    worker = await registration.register(request, bearer=TOKEN)
    assert (await registration.speaks_for(worker.id, bearer=TOKEN)).id == worker.id
    with pytest.raises(NotSignedIn):
        await registration.speaks_for(request.name, bearer=TOKEN)


async def test_a_node_speaks_only_for_itself(registration: Registration) -> None:
    """Promise 7, H3."""
    mine, other = a_node(), a_node()
    own = await registration.register(mine, bearer=TOKEN)
    await registration.register(other, bearer=TOKEN)
    assert (await registration.speaks_for(own.id, bearer=own.api_token or "")).name == mine.name
    for bearer in (own.api_token or "", TOKEN, ""):
        with pytest.raises(NotSignedIn):
            await registration.speaks_for(other.name, bearer=bearer)


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
