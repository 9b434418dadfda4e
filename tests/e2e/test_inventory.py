"""The inventory, end to end: it follows the operations on a node's disk automatically."""

import asyncio
import uuid

from nodesmith.domain.operation import State
from tests.e2e.fleet import PATIENCE_S, Fleet, offer
from tests.e2e.slow_source import SlowSource, package


async def test_inventory_follows_the_disk_after_an_operation(fleet: Fleet, source: SlowSource) -> None:
    """Promise 5: the end of the operation triggers it, without a request."""
    name, built = f"listed-{uuid.uuid4().hex[:8]}", package(1024)
    op_id = await fleet.accepted("agent-2", **offer(source, name, built))
    assert (await fleet.ended(op_id))["state"] == State.SUCCEEDED
    async with asyncio.timeout(PATIENCE_S):
        while True:
            kept = (await fleet.http.get("/api/v1/nodes/agent-2/inventory")).json()
            found = {each["family"]: each for each in kept["backends"]}
            if name in found:
                break
            await asyncio.sleep(0.1)
    assert found[name]["digest"] == f"sha256:{built.sha256}"
    listed = (await fleet.http.get("/api/v1/nodes", params={"backend": name})).json()["items"]
    assert [node["name"] for node in listed] == ["agent-2"]
