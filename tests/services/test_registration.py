"""Registration: the shared token admits, a node's own credential acts for itself, an approval is never given here."""

import uuid

import pytest

from contracts.http import RegisterRequest
from domain.errors import InvalidRequest, NameTaken, NotSignedIn, UnknownNode
from domain.node import NodeStatus, Protocol
from services.registration import Registration
from tests.services.conftest import TOKEN


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
    request = a_node()
    await registration.register(request, bearer=TOKEN)
    await registration.approve(request.name)
    with pytest.raises(InvalidRequest, match="does not wait"):
        await registration.approve(request.name)
    with pytest.raises(UnknownNode):
        await registration.approve("nobody")


async def test_a_name_belongs_to_its_machine(registration: Registration) -> None:
    request = a_node()
    await registration.register(request, bearer=TOKEN)
    with pytest.raises(NameTaken, match="another machine"):
        await registration.register(a_node(name=request.name, machine_id="m2"), bearer=TOKEN)


async def test_a_wrong_token_admits_nobody(registration: Registration) -> None:
    for bearer in ("", "wrong"):
        with pytest.raises(NotSignedIn):
            await registration.register(a_node(), bearer=bearer)


async def test_a_localai_worker_sends_the_token_in_the_body(registration: Registration) -> None:
    request = RegisterRequest(name=f"localai-{uuid.uuid4()}", address="10.0.0.1:50051", token=TOKEN)
    assert (await registration.register(request, bearer="")).status is NodeStatus.PENDING


async def test_a_node_speaks_only_for_itself(registration: Registration) -> None:
    """Promise 7."""
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
    ],
)
async def test_bad_input_names_the_field(registration: Registration, changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await registration.register(a_node(**changes), bearer=TOKEN)
    assert refused.value.facts["field"] == field
