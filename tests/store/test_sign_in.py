"""Sign-in: a link works once, and a session expires."""

import asyncio

from sqlalchemy import text

from nodesmith.domain.access import Caller, Role
from nodesmith.store.access.sign_in import CODE_LIFETIME, SESSION_LIFETIME, SignIn
from nodesmith.store.database import Database
from tests.store.clock import SetClock

ADMIN = Caller("admin", Role.ADMIN)


async def test_link_opened_by_many_at_once_signs_in_one(database: Database, clock: SetClock) -> None:
    sign_in = SignIn(database, clock=clock)
    code, ends = await sign_in.new_code(ADMIN)
    assert ends == clock.now + CODE_LIFETIME
    opened = await asyncio.gather(*(sign_in.redeem(code) for _ in range(8)))
    sessions = [session for session in opened if session is not None]
    assert len(sessions) == 1
    token, _ends = sessions[0]
    assert await sign_in.caller_of(token) == ADMIN


async def test_link_and_session_end_with_their_time(database: Database, clock: SetClock) -> None:
    sign_in = SignIn(database, clock=clock)
    late, _ = await sign_in.new_code(ADMIN)
    clock.forward(seconds=CODE_LIFETIME.total_seconds())
    assert await sign_in.redeem(late) is None
    code, _ = await sign_in.new_code(ADMIN)
    session = await sign_in.redeem(code)
    assert session is not None
    clock.forward(seconds=SESSION_LIFETIME.total_seconds())
    assert await sign_in.caller_of(session[0]) is None


async def test_neither_code_nor_token_is_in_the_tables(database: Database, clock: SetClock) -> None:
    sign_in = SignIn(database, clock=clock)
    session = await sign_in.redeem((await sign_in.new_code(ADMIN))[0])
    code, _ = await sign_in.new_code(ADMIN)
    assert session is not None
    async with database.session() as rows:
        stored = await rows.execute(text("SELECT code_hash FROM sign_in_codes UNION SELECT token_hash FROM sessions"))
        secrets = set(stored.scalars())
    assert len(secrets) >= 2
    assert not secrets & {code, session[0]}
