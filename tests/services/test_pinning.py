"""Pinning: a tag is resolved once, at admission, and stays the same for every node and every retry."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from temporalio.client import Client

from nodesmith.contracts.temporal.operations import Policy, Projection, operation_workflow_id
from nodesmith.domain.errors import NodesmithError, OperationConflict, RegistryDenied, RegistryDown, UnknownArtifact
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import Node
from nodesmith.domain.operation import Reason, State
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.index import read_index
from nodesmith.gallery.tags import RegistryTags
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.services.batches.batches import BatchService
from nodesmith.services.nodes.registration import Registration
from nodesmith.services.operations.admission import Admission
from nodesmith.services.operations.intents import Intents
from nodesmith.services.requested_work import RequestedBackend, RequestedBatch
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.batches import Batches
from nodesmith.store.operations.idempotency import IdempotencyKeys
from nodesmith.store.operations.operations import OperationTable
from tests.agent.registry import Published, publish
from tests.agent.web import Web, running
from tests.deadlines import HANGS_S
from tests.services.conftest import Join, no_access, now, orders_on
from tests.services.test_batches import with_card
from tests.sources import LOCAL


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with running() as web:
        yield web


@pytest.fixture
def image(web: Web) -> Published:
    web.files.clear()
    web.seen.clear()
    return publish(web, [b"layer"])


def asked(image: Published) -> int:
    return len(image.site.requests(f"/v2/{image.name}/manifests/{image.tag}"))


def moved(image: Published) -> Published:
    return publish(image.site, [b"another layer"])


@pytest.mark.parametrize("scheme", ["", "oci://", "docker://"])
async def test_an_install_by_uri_is_recorded_by_digest(
    admission: Admission, operations: OperationTable, join: Join, image: Published, scheme: str
) -> None:
    node = await join()
    uri = f"{scheme}{image.reference}"
    accepted = await admission.ask(Kind.INSTALL, node.id, RequestedBackend(uri=uri), actor="ada")
    row = await operations.find(accepted.op_id)
    stored = await operations.request(accepted.op_id)
    assert row is not None
    assert stored is not None
    assert (stored.wanted.uri, stored.wanted.sha256) == (f"{uri}@{image.digest}", image.digest.removeprefix("sha256:"))
    assert (row.backend, row.uri, row.sha256) == ("echo", stored.wanted.uri, stored.wanted.sha256)
    assert stored.wanted.name == "echo", "a LocalAI worker installs from a registry only under a name"
    assert asked(image) == 1


async def test_uri_with_a_digest_needs_no_registry_request(admission: Admission, join: Join, image: Published) -> None:
    node = await join()
    by_digest = f"127.0.0.1:9/team/echo@{image.digest}"
    first = await admission.ask(Kind.INSTALL, node.id, RequestedBackend(uri=by_digest), actor="ada")
    named = RequestedBackend(uri="127.0.0.1:9/team/other:1", sha256=image.digest)
    second = await admission.ask(Kind.INSTALL, node.id, named, actor="ada")
    assert (first.joined, second.joined) == (False, False)


async def test_a_tag_that_moved_is_another_version(admission: Admission, join: Join, image: Published) -> None:
    node, request = await join(), RequestedBackend(uri=image.reference)
    first = await admission.ask(Kind.INSTALL, node.id, request, actor="ada")
    again = await admission.ask(Kind.INSTALL, node.id, request, actor="bob")
    assert (again.op_id, again.joined) == (first.op_id, True)
    moved(image)
    with pytest.raises(OperationConflict, match=first.op_id):
        await admission.ask(Kind.INSTALL, node.id, request, actor="bob")


async def test_a_repeated_request_and_a_retry_keep_their_digest(
    admission: Admission, operations: OperationTable, join: Join, image: Published, client: Client
) -> None:
    """Even if the tag has moved and the registry is down."""
    node, request = await join(), RequestedBackend(uri=image.reference)
    first = await admission.ask(Kind.INSTALL, node.id, request, actor="ada", idempotency_key="k-pin")
    image.site.files.clear()
    again = await admission.ask(Kind.INSTALL, node.id, request, actor="ada", idempotency_key="k-pin")
    assert again.op_id == first.op_id
    stored = await operations.request(first.op_id)
    assert stored is not None
    await client.get_workflow_handle(operation_workflow_id(node.id, "echo")).terminate()
    failed = {"state": State.FAILED, "reason": Reason.NO_DISK, "ended_at": now()}
    await operations.record(Projection(request=stored, workflow_id="w", at=now(), seq=1, **failed))
    retried = await operations.request((await admission.retry(first.op_id, actor="bob")).op_id)
    assert retried is not None
    assert retried.wanted == stored.wanted, "the same digest"


FAULTS: dict[str, tuple[dict[str, Any], type[NodesmithError], str]] = {
    "down": ({"status": 503}, RegistryDown, "answered 503"),
    "too many": ({"status": 429}, RegistryDown, "answered 429"),
    "silent": ({"silent": True}, RegistryDown, "no answer within 0.3 s"),
    "not there": ({"status": 404}, UnknownArtifact, "answered 404"),
    "private": ({"token": "x"}, RegistryDenied, "answered 401"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_failed_tag_lookup_starts_nothing_and_names_the_registry(
    admission: Admission, runs: TemporalRuns, join: Join, image: Published, fault: str
) -> None:
    how, error, words = FAULTS[fault]
    publish(image.site, [b"layer"], **how)
    node = await join()
    timeout = 0.3 if fault == "silent" else HANGS_S
    impatient = replace(admission.intents, tags=RegistryTags(no_access, LOCAL, timeout=timeout))
    async with asyncio.timeout(HANGS_S):
        with pytest.raises(error, match=words) as refused:
            await replace(admission, intents=impatient).ask(
                Kind.INSTALL, node.id, RequestedBackend(uri=image.reference), actor="ada"
            )
    image.manifest().released.set()
    assert refused.value.facts == {"registry": image.host}
    assert image.host in refused.value.message
    assert await runs.describe(operation_workflow_id(node.id, "echo")) is None


async def test_a_registry_that_cannot_be_reached_is_down(admission: Admission, join: Join) -> None:
    node = await join()
    with pytest.raises(RegistryDown, match=r"127\.0\.0\.1:9"):
        await admission.ask(Kind.INSTALL, node.id, RequestedBackend(uri="127.0.0.1:9/team/echo:1"), actor="ada")


# galleries and batches ----------------------------------------------------------------------------------------


def gallery_of(image: Published) -> Catalogue:
    """Two capabilities with one reference, whose first address is down."""
    build = f"uri: '127.0.0.1:9/team/echo:1', mirrors: ['{image.reference}']"
    index = (
        "- {name: engine, capabilities: {default: engine-cpu, nvidia: engine-cuda}}\n"
        f"- {{name: engine-cpu, {build}}}\n"
        f"- {{name: engine-cuda, {build}}}\n"
    )
    return Catalogue(read_index(index, gallery="main").entries)


@pytest.fixture
def service(
    database: Database, nodes: Nodes, runs: TemporalRuns, admission: Admission, image: Published
) -> BatchService:
    return BatchService(
        nodes=nodes,
        inventory=InventoryTable(database),
        batches=Batches(database),
        runs=runs,
        intents=replace(admission.intents, catalogue=gallery_of(image)),
        orders=orders_on(database),
        keys=IdempotencyKeys(database),
        policy=Policy(),
        clock=now,
    )


async def test_a_batch_asks_the_registry_once_and_a_mirror_answers(
    service: BatchService, join: Join, registration: Registration, nodes: Nodes, image: Published
) -> None:
    members: list[Node] = [await join(), await join(), await with_card(registration, nodes)]
    accepted = await service.start(RequestedBatch(backend="engine", nodes=[each.name for each in members]), actor="ada")
    batch = await service.batches.request(accepted.batch_id)
    assert batch is not None
    assert {build.backend for build in batch.builds.values()} == {"engine-cpu", "engine-cuda"}
    assert {build.uri for build in batch.builds.values()} == {f"127.0.0.1:9/team/echo:1@{image.digest}"}
    assert {build.sha256 for build in (*batch.builds.values(), batch.wanted)} == {image.digest.removeprefix("sha256:")}
    assert asked(image) == 1


async def test_a_repeated_batch_is_answered_as_it_was_begun(
    service: BatchService, join: Join, image: Published
) -> None:
    """Even if the registry no longer has the image."""
    one, two = await join(), await join()
    request = RequestedBatch(backend="engine", nodes=[one.name, two.name])
    first = await service.start(request, actor="ada", idempotency_key="b-pin")
    image.site.files.clear()
    again = await service.start(request, actor="ada", idempotency_key="b-pin")
    assert again.repeated
    assert replace(again, repeated=False, message=first.message) == first
    with pytest.raises(OperationConflict, match="Idempotency-Key"):
        await service.start(replace(request, force=True), actor="ada", idempotency_key="b-pin")


async def test_a_batch_is_not_begun_without_its_registry(service: BatchService, join: Join, image: Published) -> None:
    image.site.files.clear()
    node = await join()
    with pytest.raises(RegistryDown, match=r"127\.0\.0\.1:9.*answered 404"):
        await service.start(RequestedBatch(backend="engine", nodes=[node.name]), actor="ada")


async def test_a_gallery_entry_with_a_digest_is_its_own_pin(admission: Admission, join: Join) -> None:
    index = f"- {{name: engine, uri: '127.0.0.1:9/team/echo:1', sha256: {'c' * 64}}}\n"
    catalogue = Catalogue(read_index(index, gallery="main").entries)
    pinned: Intents = replace(admission.intents, catalogue=catalogue)
    node = await join()
    accepted = await replace(admission, intents=pinned).ask(
        Kind.INSTALL, node.id, RequestedBackend(backend="engine"), actor="ada"
    )
    stored = await admission.operations.request(accepted.op_id)
    assert stored is not None
    assert stored.wanted.uri.endswith(f"@sha256:{'c' * 64}")
