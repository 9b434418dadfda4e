"""An invite admits its number of nodes until it expires; the last use is never shared."""

import asyncio
from datetime import timedelta

import pytest

from nodesmith.domain.access import Invite, InviteTerms
from nodesmith.domain.errors import InviteSpent, NodesmithError, NotSignedIn
from nodesmith.store.access.invites import Invites
from nodesmith.store.database import Database
from tests.store.clock import SetClock


@pytest.fixture
def invites(database: Database, clock: SetClock) -> Invites:
    return Invites(database, clock=clock)


async def new_invite(invites: Invites, clock: SetClock, secret: str, uses: int = 1) -> Invite:
    ends = clock.now + timedelta(hours=1)
    return await invites.create(InviteTerms(uses=uses), token_hash=secret, created_by="admin", expires_at=ends)


async def used(invites: Invites, invite: Invite) -> int:
    return next(each.used for each in await invites.list() if each.id == invite.id)


async def test_concurrent_joins_do_not_exceed_the_uses_of_an_invite(invites: Invites, clock: SetClock) -> None:
    invite = await new_invite(invites, clock, "crowd", uses=3)

    tries = (invites.redeem("crowd", node_name=f"node-{number}", machine_id="m") for number in range(8))
    answers = await asyncio.gather(*tries, return_exceptions=True)
    refusals = [answer for answer in answers if isinstance(answer, InviteSpent)]
    assert (len(answers) - len(refusals), len(refusals)) == (3, 5)
    assert {refusal.message for refusal in refusals} == {"This invite has been used 3 times, which is its limit."}
    assert await used(invites, invite) == 3


async def test_a_node_that_asks_again_is_not_counted_again(invites: Invites, clock: SetClock) -> None:
    """The reply to its first registration may have been lost."""
    invite = await new_invite(invites, clock, "lost-answer")
    _, first = await invites.redeem("lost-answer", node_name="n", machine_id="m")
    _, again = await invites.redeem("lost-answer", node_name="n", machine_id="m")
    assert (first, again, await used(invites, invite)) == (True, False, 1)
    with pytest.raises(InviteSpent):
        await invites.redeem("lost-answer", node_name="n", machine_id="another")


async def test_released_use_is_available_again(invites: Invites, clock: SetClock) -> None:
    invite = await new_invite(invites, clock, "back")
    await invites.redeem("back", node_name="n", machine_id="m")
    for _ in range(2):
        await invites.release_use(invite.id, node_name="n", machine_id="m")
    assert await used(invites, invite) == 0
    await invites.redeem("back", node_name="other", machine_id="m")


async def test_expired_revoked_and_foreign_invites_admit_no_node(invites: Invites, clock: SetClock) -> None:
    late = await new_invite(invites, clock, "late", uses=9)
    await invites.redeem("late", node_name="early", machine_id="m")
    taken_back = await new_invite(invites, clock, "taken-back")
    await invites.revoke(taken_back.id)
    clock.now += timedelta(hours=1)
    refusals: dict[str, type[NodesmithError]] = {"late": InviteSpent, "taken-back": InviteSpent, "foreign": NotSignedIn}
    for secret, refusal in refusals.items():
        for node in ("early", "new"):
            with pytest.raises(refusal):
                await invites.redeem(secret, node_name=node, machine_id="m")
    assert await used(invites, late) == 1
    assert await invites.revoke(taken_back.id) is None
