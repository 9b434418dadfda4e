"""Attacks with the shared registration token. They come last: afterwards the system registers no further node."""

from nodesmith.bus.nkeys import KeyPair, Role
from tests.attacks.frame import Attack, AttackSucceeded, Severity, System, expect_status

TRIES = 150


async def token_reads_an_archive(system: System) -> str:
    """Register a node, which nobody approves, and fetch an uploaded archive with its credential."""
    token = (system.folder / "secrets" / "registration-token").read_text().strip()
    entries = (await system.fleet.http.get("/api/backends")).json()["backends"]
    uri = next(each["uri"] for each in entries if str(each.get("uri", "")).startswith("/artifacts/"))
    body = {"name": "reader", "protocol": 2, "machine_id": "m", "boot_id": "b"}
    async with system.client(token) as http:
        key = KeyPair.create(Role.USER).public
        made = (await http.post("/api/node/register", json={**body, "nats_key": key})).raise_for_status().json()
    async with system.client(made["api_token"]) as http:
        return expect_status(await http.get(uri), 403)


async def token_fills_the_registry(system: System) -> str:
    token = (system.folder / "secrets" / "registration-token").read_text().strip()
    async with system.client(token) as http:
        for number in range(TRIES):
            body = {"name": f"flood-{number}", "protocol": 2, "machine_id": f"m-{number}", "boot_id": f"b-{number}"}
            answer = await http.post("/api/node/register", json={**body, "nats_key": KeyPair.create(Role.USER).public})
            if answer.status_code == 429:
                return f"{expect_status(answer, 429)} after {number} nodes"
            if not answer.is_success:
                raise AttackSucceeded(f"the attack was wrong: HTTP {answer.status_code} {answer.text[:200]}")
    raise AttackSucceeded(f"{TRIES} nodes were registered")


ATTACKS = (
    Attack("a registration token reads uploaded archives", Severity.MEDIUM, token_reads_an_archive),
    Attack("one registration token fills the registry", Severity.LOW, token_fills_the_registry),
)
