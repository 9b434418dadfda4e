"""Operations as the workflow would have left them."""

import secrets
from datetime import timedelta
from itertools import count
from typing import Any

from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import ENDED, State
from tests.api.station import Api
from tests.store.clock import NOON
from tests.store.transitions import a_request, transition

_seconds = count(1)


async def recorded(api: Api, state: State, *, kind: Kind = Kind.INSTALL, **facts: Any) -> str:
    """Record an operation on a node of its own, unless one is named; each ends a second after the one before."""
    reported = {name: facts.pop(name) for name in ("reason", "detail") if name in facts}
    request = a_request(**{"node_id": f"n-{secrets.token_hex(4)}", **facts})
    request = request.model_copy(update={"wanted": request.wanted.model_copy(update={"kind": kind})})
    moment = next(_seconds)
    ended_at = NOON + timedelta(seconds=moment) if state in ENDED else None
    await api.deps.operations.record(transition(request, state, at=moment, ended_at=ended_at, **reported))
    return request.op_id
