"""Attacks with full access to Temporal or to NATS, but without an order key."""

import asyncio
import shutil
import uuid
from datetime import UTC, datetime
from pathlib import Path

import httpx2
from nats.aio.msg import Msg

from nodesmith.agent.link.pinned_trust import PinFile, PinnedTrust
from nodesmith.bus.connection import connect_control
from nodesmith.bus.nats_credentials import CredentialIssuer
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.messages import Command
from nodesmith.contracts.nats.orders import SignedCommand, TrustChain
from nodesmith.contracts.temporal.operations import (
    Intent,
    OperationInput,
    OperationRequest,
    Policy,
    operation_workflow_id,
)
from nodesmith.domain.errors import NodesmithError
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import Protocol
from nodesmith.domain.operation import Reason
from nodesmith.runtime.temporal import TemporalRuns, connect
from nodesmith.runtime.trust_lists import NotTrusted, read_list
from tests.attacks.frame import Attack, AttackSucceeded, Severity, System
from tests.attacks.nats import as_node
from tests.e2e.slow_source import package

VICTIM = "agent-2"
_WRONG_DIGEST = "0" * 64


def _archive(system: System) -> tuple[str, str]:
    built, path = package(1000), system.scratch / f"{uuid.uuid4().hex}.tar.gz"
    path.write_bytes(built.content)
    return path.as_uri(), built.sha256


def _folder(system: System, family: str) -> Path:
    return system.folder / "agents" / VICTIM / "backends" / family


async def temporal_starts_an_install(system: System) -> str:
    """With a client certificate of the home, start a run for an archive that no API admitted."""
    family, (uri, sha256) = f"forged-{uuid.uuid4().hex[:8]}", _archive(system)
    request = OperationRequest(
        op_id=str(uuid.uuid4()),
        node_id=str(system.identity(VICTIM)["node_id"]),
        node_name=VICTIM,
        protocol=Protocol.NODESMITH,
        wanted=Intent(kind=Kind.INSTALL, backend=family, family=family, name=family, uri=uri, sha256=sha256),
        requested_by="admin",
        created_at=datetime.now(UTC),
    )
    runs = TemporalRuns(await connect(system.machine.temporal_settings()))
    run_id = await runs.start(OperationInput(request=request, policy=Policy()), intent="forged")
    while request.op_id in {run.op_id for run in await runs.open_runs()}:  # noqa: ASYNC110 - a worker closes it
        await asyncio.sleep(1)
    result = await runs.result(operation_workflow_id(request.node_id, family), run_id)
    if _folder(system, family).exists():
        raise AttackSucceeded(f"the node installed it; the run ended {result}")
    if result is None or result.reason is not Reason.NOT_ADMITTED:
        raise AttackSucceeded(f"the run did not end as not_admitted but as {result}")
    audit = (await system.fleet.http.get("/api/v1/audit", params={"action": "operations.not_admitted"})).text
    if request.op_id not in audit:
        raise AttackSucceeded("the audit trail does not name the run")
    return "failed: not_admitted, with an audit row"


async def nats_owner_sends_a_command(system: System) -> str:
    """With the account's seed, send a command as the worker does, but without a signed order."""
    family, (uri, sha256) = f"forged-{uuid.uuid4().hex[:8]}", _archive(system)
    seed = (system.folder / "secrets" / "nats-account-seed").read_text().strip()
    bus = await connect_control(system.nats_url, CredentialIssuer(seed), name="attack")
    node_id = str(system.identity(VICTIM)["node_id"])
    command = Command(
        op_id=str(uuid.uuid4()), kind=Kind.INSTALL, family=family, backend=family, uri=uri, sha256=sha256, decision=1
    )
    try:
        reply = await bus.request(subjects.install(node_id), command.encode(), within=10)
        said = reply.data.decode(errors="replace")
    except NodesmithError as error:
        said = str(error)
    finally:
        await bus.close()
    if _folder(system, family).exists() or "accepted" in said:
        raise AttackSucceeded(f"the node answered {said[:200]}")
    return "the agent refuses a command without a signed order"


async def nats_owner_repeats_an_earlier_order(system: System) -> str:
    """Repeat a failed order after a newer one was applied; only the unsigned decision number is raised."""
    family, (uri, sha256) = f"repeated-{uuid.uuid4().hex[:8]}", _archive(system)
    subject, heard = subjects.install(str(system.identity(VICTIM)["node_id"])), list[bytes]()

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    async with as_node(system, VICTIM) as bus:
        await bus.subscribe(subject, hear)
        await bus.settle()
        for digest in (_WRONG_DIGEST, sha256):
            await system.fleet.ended(await system.fleet.accepted(VICTIM, uri=uri, sha256=digest, name=family))
    old = next(each for each in map(SignedCommand.decode, heard) if _WRONG_DIGEST in each.order.payload)
    seed = (system.folder / "secrets" / "nats-account-seed").read_text().strip()
    control = await connect_control(system.nats_url, CredentialIssuer(seed), name="attack")
    try:
        reply = await control.request(subject, old.model_copy(update={"decision": 1000}).encode(), within=10)
        said = reply.data.decode(errors="replace")
    finally:
        await control.close()
    if "newer order" not in said:
        raise AttackSucceeded(f"the node answered {said[:300]}")
    return "the agent refuses an order that is older than the newest that began"


async def older_trust_list(system: System) -> str:
    """After a rotation, whoever owns the way to the API serves the list of before to a node."""
    before = (await system.fleet.http.get("/api/v1/trust")).raise_for_status().content
    (await system.fleet.http.post("/api/v1/keys/rotate", json={})).raise_for_status()
    pin = system.folder / "agents" / VICTIM / "trust.json"
    newest = read_list(TrustChain.model_validate_json((await system.fleet.http.get("/api/v1/trust")).content).lists[-1])
    async with asyncio.timeout(60):
        while not (found := PinFile(pin.parent).load()) or read_list(found).version < newest.version:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    (stolen := system.scratch / "pins").mkdir(exist_ok=True)
    shutil.copy(pin, stolen / pin.name)
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=before))
    async with httpx2.AsyncClient(transport=transport, base_url="https://owned.invalid") as http:
        trust = PinnedTrust(http, PinFile(stolen))
        try:
            await trust.refresh()
            said = "the older list is not taken"
        except NotTrusted as error:
            said = str(error)[:100]
    if trust.version != newest.version:
        raise AttackSucceeded(f"the node went back from list {newest.version} to {trust.version}")
    return f"the agent: {said}"


ATTACKS = (
    Attack("Temporal starts an install that no API admitted", Severity.CRITICAL, temporal_starts_an_install, 120),
    Attack("the owner of NATS sends a command to a node", Severity.CRITICAL, nats_owner_sends_a_command),
    Attack("a node is given an older trust list", Severity.HIGH, older_trust_list, 120),
    Attack("the owner of NATS repeats an order that failed", Severity.HIGH, nats_owner_repeats_an_earlier_order, 120),
)
