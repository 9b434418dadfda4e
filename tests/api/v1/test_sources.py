"""Source settings: set by an admin, readable only by the node that fetches."""

import secrets
from datetime import UTC, datetime
from typing import Any

from nodesmith.contracts.temporal.operations import Projection
from nodesmith.domain.operation import Reason, State
from nodesmith.store.operations.permits import PermitTable
from tests.api.station import ADMIN_TOKEN, REGISTRATION_TOKEN, Api, bearer

PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
SECRET = {"username": "ada", "password": "s3cret-word", "ca": PEM, "proxy": "http://me:hush@proxy.invalid:3128"}


async def put(api: Api, **body: Any) -> str:
    host = f"r-{secrets.token_hex(3)}.invalid:5000"
    answer = await api.http.put(f"/api/v1/sources/{host}", json={**SECRET, **body})
    assert answer.status_code == 200, answer.text
    return host


def permits(api: Api) -> PermitTable:
    return PermitTable(api.deps.operations._database)


async def ask(api: Api, node: str, token: str, host: str) -> Any:
    return await api.http.get(f"/api/node/{node}/sources", params={"host": host}, headers=bearer(token))


async def operation(api: Api, node: dict[str, Any], host: str, *, sent: bool = True) -> str:
    """One that fetches from that host, and is open; nothing carries it out here."""
    body = {"uri": f"https://{host}/x.tar.gz", "sha256": "a" * 64, "name": f"x-{secrets.token_hex(3)}"}
    answer = await api.http.post("/api/v1/operations", json={"kind": "install", "node": node["id"], **body})
    assert answer.status_code == 202, answer.text
    if sent:
        await permits(api).permit(answer.json()["op_id"], 1, token="", on_node=False)
    return str(answer.json()["op_id"])


async def ended(api: Api, op_id: str) -> None:
    stored = await api.deps.operations.request(op_id)
    assert stored is not None
    end = {"state": State.FAILED, "reason": Reason.NO_DISK, "ended_at": datetime.now(UTC)}
    written = await api.deps.operations.record(
        Projection(request=stored, workflow_id="w", at=datetime.now(UTC), seq=1, **end)
    )
    assert written.written


async def test_node_gets_source_settings_while_it_fetches_from_that_host(api: Api) -> None:
    host, other, node = await put(api), await put(api), await api.approved_node()
    op_id = await operation(api, node, host)
    answer = await ask(api, node["id"], node["api_token"], host)
    assert answer.json() == {"host": host, **SECRET, "realms": []}
    assert (await ask(api, node["id"], node["api_token"], host.upper())).status_code == 200
    assert (await ask(api, node["id"], node["api_token"], other)).status_code == 403
    assert (await ask(api, node["id"], node["api_token"], "a b")).status_code == 400
    await ended(api, op_id)
    assert (await ask(api, node["id"], node["api_token"], host)).status_code == 403


async def test_node_without_an_operation_for_the_host_gets_no_settings(api: Api) -> None:
    """The same answer for a host with a password and for one without; an operation of another node does not count."""
    host, node, other = await put(api), await api.approved_node(), await api.approved_node()
    await operation(api, other, host)
    await operation(api, node, host, sent=False)
    for each in (host, "nothing-is-set.invalid"):
        assert (await ask(api, node["id"], node["api_token"], each)).status_code == 403


async def test_each_operation_that_was_handed_a_password_is_in_the_audit_trail_once(api: Api) -> None:
    host, node = await put(api), await api.approved_node()
    op_id = await operation(api, node, host)
    for _ in range(3):
        await ask(api, node["id"], node["api_token"], host)
    trail = (await api.http.get("/api/v1/audit", params={"target": host, "action": "sources.hand_out"})).json()["items"]
    assert [(row["actor"], row["after"]["op_id"], row["outcome"]) for row in trail] == [(node["name"], op_id, "done")]


async def test_other_callers_get_no_source_settings(api: Api) -> None:
    host, node, other = await put(api), await api.approved_node(), await api.approved_node()
    await operation(api, node, host)
    pending = await api.register()
    reported = [
        (await ask(api, node["id"], token, host)).status_code
        for token in (ADMIN_TOKEN, REGISTRATION_TOKEN, other["api_token"], "nonsense")
    ]
    assert reported == [401, 401, 401, 401]
    assert (await ask(api, pending["id"], pending["api_token"], host)).status_code == 403


async def test_no_list_trail_or_log_has_the_secret(api: Api, capfd: Any) -> None:
    host, node = await put(api), await api.approved_node()
    await operation(api, node, host)
    assert (await ask(api, node["id"], node["api_token"], host)).status_code == 200
    listed = await api.http.get("/api/v1/sources")
    trail = await api.http.get("/api/v1/audit")
    assert host in listed.text
    assert host in trail.text
    logged = "".join(capfd.readouterr())
    for reported in (listed.text, trail.text, logged):
        assert not any(word in reported for word in ("s3cret", "hush", "AAAA"))


async def test_unusable_source_settings_are_refused(api: Api) -> None:
    for body in ({"ca": "no certificate"}, {"proxy": "proxy:3128"}, {"proxy": "http://"}, {"username": "x" * 300}):
        answer = await api.http.put("/api/v1/sources/bad.invalid", json=body)
        assert answer.status_code == 400, body
    assert (await api.http.put("/api/v1/sources/a%20b", json={})).status_code == 400
    assert (await api.http.delete("/api/v1/sources/bad.invalid")).status_code == 404


async def test_removed_settings_are_no_longer_returned(api: Api) -> None:
    host, node = await put(api), await api.approved_node()
    await operation(api, node, host)
    assert (await api.http.delete(f"/api/v1/sources/{host}")).status_code == 200
    assert (await ask(api, node["id"], node["api_token"], host)).status_code == 404


async def test_a_private_key_among_the_certificates_is_refused(api: Api) -> None:
    """Who copies a server's whole file by mistake hears of it before every node could read it."""
    key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
    answer = await api.http.put("/api/v1/sources/keyed.test", json={"ca": PEM + key})
    assert (answer.status_code, answer.json()["facts"]["field"]) == (400, "ca")
