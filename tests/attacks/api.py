"""Attacks on the API by anonymous clients, by web pages, and through the terminals of its users."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import httpx2
import psutil

from tests.api.station import a_nats_key
from tests.attacks.frame import Attack, AttackSucceeded, Severity, System, expect_status

HEAD = b"GET / HTTP/1.1\r\nHost: here\r\n"
_TINY = b"GET /x HTTP/1.1\r\n\r\n"
STEERING = "\x1b]0;owned\x07\x1b[2J\u202e"


async def connect(system: System) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", urlsplit(system.fleet.url).port)


async def until_closed(reader: asyncio.StreamReader, within: float) -> bytes:
    said = b""
    async with asyncio.timeout(within):
        with suppress(ConnectionError):
            while part := await reader.read(65536):
                said += part
    return said


@asynccontextmanager
async def signed_in(system: System) -> AsyncIterator[httpx2.AsyncClient]:
    link = (await system.fleet.http.post("/api/v1/sign-in-links")).json()["url"]
    async with system.client() as browser:
        await browser.get(link)
        yield browser


async def valid_credential_locks_its_address_out(system: System) -> str:
    fresh = await system.token("viewer")
    async with system.client(system.identity("agent-1")["api_token"]) as node:
        for _ in range(100):
            await node.get("/api/v1/nodes")
    async with system.client("guess") as guesser:
        for _ in range(100):
            answer = await guesser.get("/api/v1/nodes")
    wait_s = int(answer.headers.get("Retry-After", "0"))
    async with system.client(fresh) as neighbour:
        admitted = await neighbour.get("/api/v1/nodes")
    if admitted.status_code != 200 or wait_s > 60:
        raise AttackSucceeded(f"a valid token from that address: HTTP {admitted.status_code}; wait {wait_s} s")
    return f"guesses: {expect_status(answer, 429)} for {wait_s} s; a valid token is verified first and admitted"


async def forwarded_address_escapes_the_count(system: System) -> str:
    async with system.client("guess-from-elsewhere") as guesser:
        for number in range(100):
            answer = await guesser.get("/api/v1/nodes", headers={"X-Forwarded-For": f"203.0.113.{number}"})
    return expect_status(answer, 429)


async def endless_header_slows_the_api(system: System) -> str:
    _, writer = await connect(system)
    writer.write(HEAD + b"X-Endless: ")
    sent = 0
    with suppress(ConnectionError):
        while sent < 64 * 1024 * 1024:
            writer.write(b"a" * 65536)
            await writer.drain()
            sent += 65536
    began = time.monotonic()
    await system.fleet.http.get("/healthz")
    waited_s = time.monotonic() - began
    writer.close()
    if sent >= 64 * 1024 * 1024:
        raise AttackSucceeded(f"{sent} bytes of one header were taken; /healthz took {waited_s:.1f} s")
    return f"HTTP 431, closed after at most {sent // 1024} KiB"


async def pipelined_requests_fill_the_memory(system: System) -> str:
    """Send 20 MB of tiny requests on one connection without a pause; each response lets the server read more."""
    pids = [pid for name, pid in system.machine.pids().items() if name.startswith("api")]
    before = sum(psutil.Process(pid).memory_info().rss for pid in pids)
    reader, writer = await connect(system)
    said = asyncio.create_task(until_closed(reader, 50))
    sent = 0
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(30):
            while sent < 20 * 1024 * 1024:
                writer.write(_TINY * 3000)
                await writer.drain()
                sent += len(_TINY) * 3000
    grown = sum(psutil.Process(pid).memory_info().rss for pid in pids) - before
    writer.transport.abort()
    answers = await said
    if not pids or grown > 100 * 1024 * 1024 or b" 429 " not in answers:
        raise AttackSucceeded(f"{sent // 1024} KiB made the API grow by {grown // 1024**2} MiB")
    return f"HTTP 429, closed; the API grew by {max(grown, 0) // 1024**2} MiB"


async def half_sent_heads_stay_open(system: System) -> str:
    connections = [await connect(system) for _ in range(50)]
    for _, writer in connections:
        writer.write(HEAD)
    try:
        said = await asyncio.gather(*(until_closed(reader, 30) for reader, _ in connections))
    except TimeoutError:
        raise AttackSucceeded("connections with half a head are open after 30 s") from None
    finally:
        for _, writer in connections:
            writer.close()
    return said[0].partition(b"\r\n")[0].decode()


async def copied_cookie_outlives_sign_out(system: System) -> str:
    async with signed_in(system) as browser, system.client() as thief:
        copied = dict(browser.cookies)
        await browser.post("/api/v1/sign-out", headers={"Origin": system.fleet.url})
        return expect_status(await thief.get("/api/v1/nodes", cookies=copied), 401)


async def page_of_another_port_uses_the_session(system: System) -> str:
    async with signed_in(system) as browser:
        answer = await browser.post(
            "/api/v1/nodes/agent-2/drain", headers={"Origin": "http://127.0.0.1:1", "Content-Type": "text/plain"}
        )
    return expect_status(answer, 403)


async def stream_outlives_its_token(system: System) -> str:
    made = (await system.fleet.http.post("/api/v1/tokens", json={"name": "stream-thief", "role": "viewer"})).json()
    async with system.client(made["token"]) as http, http.stream("GET", "/api/v1/events", timeout=60) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        await system.fleet.http.delete(f"/api/v1/tokens/{made['id']}")
        began = time.monotonic()
        try:
            async with asyncio.timeout(40):
                async for _ in lines:
                    pass
        except TimeoutError:
            raise AttackSucceeded("the stream goes on 40 s after its token was revoked") from None
    return f"the stream ended {time.monotonic() - began:.0f} s later, with its keep-alive"


async def sign_in_code_is_in_the_logs(system: System) -> str:
    link = (await system.fleet.http.post("/api/v1/sign-in-links")).json()["url"]
    code = link.rpartition("/")[2]
    async with system.client() as browser:
        await browser.get(link)
        await browser.get(link)
    found = [path.name for path in (system.folder / "logs").glob("*.log*") if code in path.read_text(errors="replace")]
    if found:
        raise AttackSucceeded(f"the code is in {', '.join(found)}")
    return "no log has it"


async def node_controls_the_terminal(system: System) -> str:
    token = (system.folder / "secrets" / "registration-token").read_text().strip()
    body = {"protocol": 2, "machine_id": "m", "agent_version": STEERING, "nats_key": a_nats_key()}
    async with system.client(token) as http:
        named = await http.post("/api/node/register", json={**body, "name": f"steering{STEERING}"})
        (await http.post("/api/node/register", json={**body, "name": "steering"})).raise_for_status()
    shown = await asyncio.to_thread(system.machine.run, "nodes", "show", "steering")
    await system.fleet.http.delete("/api/v1/nodes/steering")
    if shown.returncode or any(odd in shown.stdout for odd in "\x1b\x07\u202e"):
        raise AttackSucceeded(f"nodesmith nodes show printed {shown.stdout!r}")
    return f"the name: {expect_status(named, 400)}; the version: shown as its codes"


ATTACKS = (
    Attack("401s of a valid credential lock its address out", Severity.MEDIUM, valid_credential_locks_its_address_out),
    Attack("an endless header slows the API", Severity.MEDIUM, endless_header_slows_the_api),
    Attack("pipelined requests fill the memory", Severity.HIGH, pipelined_requests_fill_the_memory, 90),
    Attack("half-sent headers stay open", Severity.MEDIUM, half_sent_heads_stay_open),
    Attack("an event stream outlives its token", Severity.MEDIUM, stream_outlives_its_token),
    Attack("a page of another port uses the session", Severity.MEDIUM, page_of_another_port_uses_the_session),
    Attack("a copied cookie outlives the sign-out", Severity.LOW, copied_cookie_outlives_sign_out),
    Attack("X-Forwarded-For hides who guesses", Severity.LOW, forwarded_address_escapes_the_count),
    Attack("a sign-in code is in the logs", Severity.LOW, sign_in_code_is_in_the_logs),
    Attack("a node's name and version steer the terminal", Severity.LOW, node_controls_the_terminal),
)
