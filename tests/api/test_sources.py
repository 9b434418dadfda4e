"""Access to hosts: set by an admin, told to a node for itself, and to nobody else."""

import secrets
from typing import Any

from tests.api.station import ADMIN_TOKEN, REGISTRATION_TOKEN, Api, bearer

PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
SECRET = {"username": "ada", "password": "s3cret-word", "ca": PEM, "proxy": "http://me:hush@proxy.invalid:3128"}


async def put(api: Api, **body: Any) -> str:
    host = f"r-{secrets.token_hex(3)}.invalid:5000"
    answer = await api.http.put(f"/api/sources/{host}", json={**SECRET, **body})
    assert answer.status_code == 200, answer.text
    return host


async def ask(api: Api, node: str, token: str, host: str) -> Any:
    return await api.http.get(f"/api/node/{node}/sources", params={"host": host}, headers=bearer(token))


async def test_a_node_is_told_with_its_own_credential(api: Api) -> None:
    host, node = await put(api), await api.approved_node()
    answer = await ask(api, node["id"], node["api_token"], host)
    assert answer.json() == {"host": host, **SECRET}
    assert (await ask(api, node["id"], node["api_token"], "other.invalid")).status_code == 404
    assert (await ask(api, node["id"], node["api_token"], "a b")).status_code == 400


async def test_nobody_else_is_told(api: Api) -> None:
    host, node, other = await put(api), await api.approved_node(), await api.approved_node()
    pending = await api.register()
    told = [
        (await ask(api, node["id"], token, host)).status_code
        for token in (ADMIN_TOKEN, REGISTRATION_TOKEN, other["api_token"], "nonsense")
    ]
    assert told == [401, 401, 401, 401]
    assert (await ask(api, pending["id"], pending["api_token"], host)).status_code == 403


async def test_no_list_trail_or_log_has_the_secret(api: Api, capfd: Any) -> None:
    host, node = await put(api), await api.approved_node()
    await ask(api, node["id"], node["api_token"], host)
    listed = await api.http.get("/api/sources")
    trail = await api.http.get("/api/audit")
    assert host in listed.text
    assert host in trail.text
    logged = "".join(capfd.readouterr())
    for told in (listed.text, trail.text, logged):
        assert not any(word in told for word in ("s3cret", "hush", "AAAA"))


async def test_what_cannot_be_used_is_refused(api: Api) -> None:
    for body in ({"ca": "no certificate"}, {"proxy": "proxy:3128"}, {"proxy": "http://"}, {"username": "x" * 300}):
        answer = await api.http.put("/api/sources/bad.invalid", json=body)
        assert answer.status_code == 400, body
    assert (await api.http.put("/api/sources/a%20b", json={})).status_code == 400
    assert (await api.http.delete("/api/sources/bad.invalid")).status_code == 404


async def test_what_is_removed_is_told_no_more(api: Api) -> None:
    host, node = await put(api), await api.approved_node()
    assert (await api.http.delete(f"/api/sources/{host}")).status_code == 200
    assert (await ask(api, node["id"], node["api_token"], host)).status_code == 404


async def test_a_private_key_among_the_certificates_is_refused(api: Api) -> None:
    """Who copies a server's whole file by mistake hears of it before every node could read it."""
    key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
    answer = await api.http.put("/api/sources/keyed.test", json={"ca": PEM + key})
    assert (answer.status_code, answer.json()["field"]) == (400, "ca")
