"""Measures what signing and verifying cost one operation: `make bench-signing`.

The throughput of the whole system varies by a third from minute to minute, so before and after cannot show 3 %. Here
both figures are processor time of one run: the signatures of one operation, made and verified by the code that the
API, the worker and the nodes run, and a whole operation of a running system on a node that installs in no time. That
is the worst case: every real install costs more, and the same signatures.
"""

import asyncio
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import httpx2
import psutil

from benchmarks.operations import Ends, whole
from benchmarks.running import first_of_group, run
from benchmarks.stage import Stage, at_once, simulated, stage, verdict
from nodesmith.agent.link.pinned_trust import PinInMemory, PinnedTrust
from nodesmith.agent.operations.order_checks import OrderVerifier
from nodesmith.bus.nkeys import KeyPair, Role
from nodesmith.bus.signed_messages import ReportSigner, Signatures, Signed
from nodesmith.contracts.nats.messages import CommandReply, Outcome, Result
from nodesmith.contracts.nats.orders import Order, SignedCommand
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import NatsCredential, NodeKey, Protocol
from nodesmith.runtime.keyring import Keyring, create_keys, now_ms

ROUNDS = 5
OPERATIONS = 200
IN_FLIGHT = 20
NODES = 20
REPEATS = 300
NODE_ID = str(uuid.uuid4())
DAY_MS = 24 * 3600 * 1000
SUBJECT = f"_R.{NODE_ID}.{'0' * 32}.{'1' * 32}"


class FreshMemory:
    """A node that knows no operation, so every check is made."""

    def knows(self, op_id: str) -> bool:
        return not op_id

    def would_begin(self, op_id: str, decision: int) -> bool:
        return bool(op_id and decision)

    def newest_iat(self, family: str) -> int:
        return 0 if family else 1


class OneKey:
    """The registered key of the one node."""

    def __init__(self, public: str) -> None:
        self._key = NodeKey(Protocol.NODESMITH, public)

    async def keys_of(self, node_ids: Sequence[str]) -> Mapping[str, NodeKey]:
        return dict.fromkeys(node_ids, self._key)


class Exchange:
    """The signatures of one operation, each by the code that makes or verifies it in the system."""

    def __init__(self, folder: Path, http: httpx2.AsyncClient) -> None:
        create_keys(folder)
        self._keyring = Keyring.opened(folder)
        pins = PinInMemory()
        pins.save(self._keyring.chain().newest)
        self._verifier = OrderVerifier(NODE_ID, PinnedTrust(http, pins), FreshMemory(), _nothing_installed)
        key = KeyPair.create(Role.USER)
        credential = NatsCredential(jwt="", seed=key.seed, expires_at=datetime.now(UTC) + timedelta(days=1))
        self._signer = ReportSigner(lambda: credential)
        self._signatures = Signatures(OneKey(key.public))
        op_id, now = str(uuid.uuid4()), now_ms()
        self._order = Order(
            node=NODE_ID,
            op_id=op_id,
            kind=Kind.INSTALL,
            family="llama-cpp",
            backend="llama-cpp",
            uri="https://files.example.com/backends/llama-cpp/1.2.3/linux-amd64-cuda12.tar.gz",
            sha256="0" * 64,
            name="llama-cpp",
            version="1.2.3",
            by="admin",
            iat=now,
            exp=now + DAY_MS,
        )
        self._command = SignedCommand(order=self._keyring.sign(self._order), decision=1)
        self._outcome = Outcome(op_id=op_id, node_id=NODE_ID, family="llama-cpp", result=Result.SUCCEEDED)
        self._envelope = self._signer.seal(Signed.OUTCOME, NODE_ID, self._outcome.encode())
        self._answer = CommandReply(op_id=op_id, success=True).encode()
        self._reply = self._signer.seal(Signed.REPLY, SUBJECT, self._answer)

    async def api(self) -> None:
        """One order, before the 202."""
        self._keyring.sign(self._order)

    async def node(self) -> None:
        """One verification; the answer, the outcome, and the outcome again inside a later answer."""
        await self._verifier.verify_command(self._command)
        self._signer.seal(Signed.REPLY, SUBJECT, self._answer)
        self._signer.seal(Signed.OUTCOME, NODE_ID, self._outcome.encode())
        self._signer.seal(Signed.OUTCOME, NODE_ID, self._outcome.encode())

    async def worker(self) -> None:
        """Three verifications: the answer, the outcome, and the outcome again where the row is written."""
        await self._signatures.open(NODE_ID, Signed.REPLY, SUBJECT, self._reply)
        await self._signatures.open(NODE_ID, Signed.OUTCOME, NODE_ID, self._envelope)
        reported = self._outcome.model_copy(update={"signed": self._envelope.decode()})
        await self._signatures.verify_outcome(NODE_ID, self._outcome.op_id, reported)


async def _nothing_installed(_family: str) -> str:
    return ""


async def cost_of(action: Callable[[], Awaitable[None]]) -> float:
    """Processor seconds of one call."""
    began = time.thread_time()
    for _ in range(REPEATS):
        await action()
    return (time.thread_time() - began) / REPEATS


def processor_time(roots: Sequence[int]) -> float:
    """Processor seconds of these processes and of all below them, ended ones included."""
    total = 0.0
    for root in roots:
        process = psutil.Process(root)
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


async def operation_cost(on: Stage, ends: Ends, nodes: Sequence[str]) -> float:
    """Processor seconds of one whole operation: servers, API, worker and simulated nodes."""
    simulators = [each.pid for each in psutil.Process().children()]
    roots = [*on.pids().values(), *simulators]
    before = processor_time(roots)
    await at_once([partial(whole, on, ends, nodes[n % len(nodes)]) for n in range(OPERATIONS)], IN_FLIGHT)
    return (processor_time(roots) - before) / OPERATIONS


async def measure(on: Stage, ends: Ends, exchange: Exchange) -> None:
    rounds: list[tuple[float, ...]] = []
    async with simulated(on, NODES, prefix="signing", seconds=0.0) as nodes:
        await operation_cost(on, ends, nodes)  # warm up
        for _ in range(ROUNDS):
            parts = [await cost_of(each) for each in (exchange.api, exchange.node, exchange.worker)]
            rounds.append((*parts, await operation_cost(on, ends, nodes)))
    shares = [sum(parts) / (all_of_it - sum(parts)) for *parts, all_of_it in rounds]
    api, node, worker, all_of_it = (statistics.median(column) * 1e3 for column in zip(*rounds, strict=True))
    print(f"one operation: {all_of_it:.1f} ms; its signatures: API {api:.3f}, node {node:.3f}, worker {worker:.3f} ms")
    print(f"shares of the rounds: {', '.join(f'{share * 100:.2f} %' for share in shares)}")
    share = statistics.median(shares) * 100
    print(verdict("signing and verifying, to an operation without", share, bar=3, goal=1, unit="%"))
    print(verdict("signing, of POST -> 202", api, bar=2, goal=0.2, unit="ms"))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with httpx2.AsyncClient() as http, stage() as on:
            exchange, ends, ready = Exchange(Path(folder) / "keys", http), Ends(), asyncio.Event()
            with first_of_group():
                async with asyncio.TaskGroup() as tasks:
                    following = tasks.create_task(ends.follow(on, ready))
                    await ready.wait()
                    await measure(on, ends, exchange)
                    following.cancel()


if __name__ == "__main__":
    run(main())
