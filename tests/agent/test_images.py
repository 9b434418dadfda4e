"""Images from a registry: the tests' own one always, Debian's docker-registry if it is installed."""

import asyncio
import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from nodesmith.agent.fetch.images import this_platform
from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.contracts.nats.messages import Command, Result
from nodesmith.domain.operation import Reason
from nodesmith.gallery.oci import Platform, read_reference
from nodesmith.gallery.registry import Registry, RegistryFailed, basic
from tests.agent.archives import built, digest, packed, regular, zstandard
from tests.agent.fetching import Fetcher, failure_of
from tests.agent.nodes import StartAgent
from tests.agent.registry import CONFIG, Published, publish
from tests.agent.waiting import until
from tests.agent.web import Web
from tests.servers import free_port

LOWER = built(regular("run.sh", b"#!/bin/sh\n"), regular("old", b"old"), regular("lib/a", os.urandom(400_000)))
UPPER = built(regular("lib/b", os.urandom(300_000)), regular(".wh.old"))


def pull(image: Published, **fields: str) -> Command:
    return Command(**{"op_id": "op", "uri": image.reference, **fields})


async def test_an_image_is_installed_from_its_layers(start_agent: StartAgent):
    node = await start_agent()
    image = publish(node.site, [LOWER, UPPER])
    command = node.command(b"", uri=f"oci://{image.reference}", sha256=image.digest, size=0)
    outcome = await node.outcome_of(command)
    assert outcome.result is Result.SUCCEEDED, outcome.error
    assert outcome.after is not None
    assert outcome.after.digest == image.digest
    assert outcome.bytes_fetched == len(LOWER) + len(UPPER)
    assert {path.name for path in node.live().iterdir()} == {"run.sh", "lib", "metadata.json"}
    assert {path.name for path in (node.live() / "lib").iterdir()} == {"a", "b"}
    again = await node.outcome_of(command.model_copy(update={"op_id": "again"}))
    assert (again.changed, again.bytes_fetched) == (False, 0)


async def test_a_layer_that_comes_twice_is_fetched_once_and_applied_each_time(start_agent: StartAgent):
    node = await start_agent()
    empty = built()
    image = publish(node.site, [LOWER, empty, UPPER, empty, LOWER])
    outcome = await node.outcome_of(node.command(b"", uri=image.reference, sha256=image.digest, size=0))
    assert outcome.result is Result.SUCCEEDED, outcome.error
    assert outcome.bytes_fetched == len(LOWER) + len(UPPER) + len(empty)
    assert (node.live() / "old").read_bytes() == b"old"


async def test_the_layers_come_in_parallel_and_count_as_one_download(fetcher: Fetcher, site: Web):
    image = publish(site, [LOWER, UPPER])
    for number in range(2):
        image.blob(number).stops_at = 100_000
    fetching = asyncio.create_task(fetcher.run(pull(image), lambda artifact: None))
    await until(lambda: fetcher.kept() == 200_000, pause=0.01)
    for number in range(2):
        image.blob(number).released.set()
    job = await fetching
    assert job.bytes_fetched == len(LOWER) + len(UPPER)
    assert {tick.bytes_total for tick in fetcher.ticks if tick.bytes_done} == {len(LOWER) + len(UPPER)}


async def test_each_layer_is_resumed_by_its_own_digest(fetcher: Fetcher, site: Web):
    image = publish(site, [LOWER, UPPER])
    image.blob(1).always_breaks_at = 100_000
    await failure_of(fetcher.run(pull(image), lambda artifact: None))
    first = image.site.requests(image.blob_path(0))
    image.blob(1).always_breaks_at = None
    job = await fetcher.run(pull(image), lambda artifact: None)
    assert job.bytes_reused == len(LOWER) + 100_000
    assert job.bytes_fetched == len(UPPER) - 100_000
    assert image.site.requests(image.blob_path(0)) == first


async def test_the_build_of_this_platform_is_taken_and_a_missing_one_is_named(fetcher: Fetcher, site: Web):
    image = publish(site, [LOWER])
    async with httpx2.AsyncClient() as http:
        reference = read_reference(image.reference)
        _, ours = await Registry(http).layers(reference, Platform("linux", "amd64"))
        _, theirs = await Registry(http).layers(reference, Platform("linux", "arm64"))
    assert [layer.digest for layer in ours] == image.layers
    assert ours != theirs
    manifest = image.manifest(image.digest)
    manifest.content = manifest.content.replace(b"amd64", b"s390x")
    image.manifest().content = manifest.content
    failure = await failure_of(fetcher.run(pull(image), lambda artifact: None))
    assert failure.reason is Reason.UNSUPPORTED_PLATFORM
    assert "linux/arm64" in str(failure)


async def test_pinned_digest_is_pulled_although_the_tag_moved(fetcher: Fetcher, site: Web):
    old = publish(site, [LOWER])
    publish(site, [UPPER])
    job = await fetcher.run(pull(old, sha256=old.digest), lambda artifact: None)
    assert job.bytes_fetched == len(LOWER)


async def test_a_registry_that_answers_another_manifest_is_a_bad_digest(fetcher: Fetcher, site: Web):
    image = publish(site, [LOWER])
    image.manifest(image.digest).content += b" "
    failure = await failure_of(fetcher.run(pull(image, sha256=image.digest), lambda artifact: None))
    assert failure.reason is Reason.BAD_DIGEST
    assert list(fetcher.folder.iterdir()) == []


@pytest.mark.parametrize("has_header", [True, False], ids=["sent by the registry", "computed"])
async def test_a_tag_is_resolved_to_the_digest_that_nodes_record(site: Web, has_header: bool):
    image = publish(site, [LOWER])
    if not has_header:
        del image.manifest().headers["Docker-Content-Digest"]
    async with httpx2.AsyncClient() as http:
        assert await Registry(http).digest(read_reference(image.reference)) == image.digest
        with pytest.raises(RegistryFailed) as failure:
            await Registry(http).digest(read_reference(f"{image.host}/team/none"))
    assert failure.value.status == 404


# credentials --------------------------------------------------------------------------------------------------

USER, PASSWORD = "robot", "s3cret-of-the-registry"


async def test_a_token_is_fetched_with_the_credential_that_the_control_plane_has(fetcher: Fetcher, site: Web):
    image = publish(site, [LOWER], token=site.token)
    site.token_credential = basic(USER, PASSWORD)
    denied = await failure_of(fetcher.run(pull(image), lambda artifact: None))
    assert denied.reason is Reason.SOURCE_DENIED
    fetcher.access[image.host] = SourceAccess(host=image.host, username=USER, password=PASSWORD)
    job = await fetcher.run(pull(image), lambda artifact: None)
    assert job.bytes_fetched == len(LOWER)
    assert set(fetcher.asked) == {image.host}


@pytest.mark.parametrize("kind", ["registry", "web"])
async def test_basic_credentials_are_for_their_host_alone(fetcher: Fetcher, site: Web, kind: str):
    content = packed(run_sh=b"x")
    if kind == "registry":
        image = publish(site, [content], basic=basic(USER, PASSWORD))
        command = pull(image)
    else:
        site.serve("/a", content, basic=basic(USER, PASSWORD))
        command = Command(op_id="op", uri=f"{site.url}/a", sha256=digest(content))
    host = site.url.removeprefix("http://")
    for access in ({}, {"other.example": SourceAccess(host="other.example", username=USER, password=PASSWORD)}):
        fetcher.access = access
        failure = await failure_of(fetcher.run(command, lambda artifact: None))
        assert failure.reason is Reason.SOURCE_DENIED
    fetcher.access = {host: SourceAccess(host=host, username=USER, password=PASSWORD)}
    await fetcher.run(command, lambda artifact: None)


async def test_an_agent_asks_for_credentials_at_use_and_writes_them_nowhere(start_agent: StartAgent, capfd):
    node = await start_agent()
    image = publish(node.site, [LOWER], token=node.site.token)
    node.site.token_credential = basic(USER, PASSWORD)
    node.site.access[image.host] = {"host": image.host, "username": USER, "password": PASSWORD}
    command = node.command(b"", uri=image.reference, sha256="", size=0)
    outcome = await node.outcome_of(command)
    assert outcome.result is Result.SUCCEEDED, outcome.error
    asked = [seen for seen in node.site.seen if seen.path == f"/api/node/{node.id}/sources"]
    assert asked
    assert {seen.headers["Authorization"] for seen in asked} == {f"Bearer {node.site.nodes[node.name].credential}"}
    files = [path.read_bytes() for path in node.home.rglob("*") if path.is_file()]
    written = b"".join(files) + outcome.encode() + "".join(capfd.readouterr()).encode()
    assert PASSWORD.encode() not in written
    assert node.site.token.encode() not in written


# Debian's registry --------------------------------------------------------------------------------------------


@pytest.fixture
def docker_registry(tmp_path: Path) -> Iterator[str]:
    """Start a real registry on an empty folder; return its address."""
    binary = shutil.which("docker-registry")
    if binary is None:
        pytest.skip("2026-11-16: Debian's docker-registry is not installed; our own registry runs everywhere")
    address = f"127.0.0.1:{free_port()}"
    config = tmp_path / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
        f"http: {{addr: '{address}'}}\n"
    )
    process = subprocess.Popen([binary, "serve", str(config)])
    yield address
    process.terminate()
    process.wait(10)


DOCKER = "application/vnd.docker.distribution.manifest"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


async def push(http: httpx2.AsyncClient, *blobs: bytes) -> None:
    for blob in (CONFIG, *blobs):
        place = (await _until_up(http, "/blobs/uploads/")).headers["Location"]
        sent = await http.put(f"{place}&digest=sha256:{digest(blob)}", content=blob)
        assert sent.status_code == 201, sent.text


async def push_document(http: httpx2.AsyncClient, kind: str, tag: str, **document: object) -> dict[str, object]:
    content = json.dumps({"schemaVersion": 2, "mediaType": kind, **document}).encode()
    name = tag or f"sha256:{digest(content)}"
    sent = await http.put(f"/manifests/{name}", content=content, headers={"Content-Type": kind})
    assert sent.status_code == 201, sent.text
    return described(kind, content)


def described(kind: str, content: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": f"sha256:{digest(content)}", "size": len(content)}


async def test_a_real_registry_serves_what_was_pushed_to_it(docker_registry: str, fetcher: Fetcher, site: Web):
    image = publish(site, [LOWER, UPPER], index=False)
    async with httpx2.AsyncClient(base_url=f"http://{docker_registry}/v2/team/echo") as http:
        await push(http, LOWER, UPPER)
        manifest = image.manifest()
        headers = {"Content-Type": manifest.headers["Content-Type"]}
        sent = await http.put("/manifests/1", content=manifest.content, headers=headers)
        assert sent.status_code == 201, sent.text
        assert await Registry(http).digest(read_reference(f"{docker_registry}/team/echo:1")) == image.digest
    job = await fetcher.run(Command(op_id="op", uri=f"{docker_registry}/team/echo:1"), lambda artifact: None)
    assert job.bytes_fetched == len(LOWER) + len(UPPER)


async def test_a_list_of_builds_and_attestations_in_a_real_registry_is_installed_from(
    docker_registry: str, start_agent: StartAgent
):
    """An index as docker buildx pushes it: Docker's media types, variants, and an attestation manifest."""
    upper = zstandard(gzip.decompress(UPPER))
    ours = this_platform()
    async with httpx2.AsyncClient(base_url=f"http://{docker_registry}/v2/team/echo") as http:
        await push(http, LOWER, upper)
        config = described("application/vnd.docker.container.image.v1+json", CONFIG)
        layers = [described(DOCKER_LAYER, blob) for blob in (LOWER, upper)]
        build = await push_document(http, f"{DOCKER}.v2+json", "", config=config, layers=layers)
        other = await push_document(http, f"{DOCKER}.v2+json", "", config=config, layers=layers[:1])
        platforms: list[tuple[dict[str, object], dict[str, str]]] = [
            (other, {"os": "unknown", "architecture": "unknown"}),
            (other, {"os": "windows", "architecture": ours.architecture}),
            (other, {"os": "linux", "architecture": "arm", "variant": "v6"}),
            (build, {"os": "linux", "architecture": ours.architecture, "variant": ours.variant}),
        ]
        listed = [each | {"platform": platform} for each, platform in platforms]
        index = await push_document(http, f"{DOCKER}.list.v2+json", "1", manifests=listed)
        reference = read_reference(f"{docker_registry}/team/echo:1")
        assert await Registry(http).digest(reference) == index["digest"]
    node = await start_agent()
    outcome = await node.outcome_of(node.command(b"", uri=str(reference), sha256=str(index["digest"]), size=0))
    assert outcome.result is Result.SUCCEEDED, outcome.error
    assert outcome.after is not None
    assert outcome.after.digest == index["digest"]
    assert {path.name for path in node.live().iterdir()} == {"run.sh", "lib", "metadata.json"}
    assert {path.name for path in (node.live() / "lib").iterdir()} == {"a", "b"}


async def test_layer_download_from_a_real_registry_resumes(docker_registry: str, fetcher: Fetcher, site: Web):
    image = publish(site, [LOWER], index=False)
    async with httpx2.AsyncClient(base_url=f"http://{docker_registry}/v2/team/echo") as http:
        await push(http, LOWER)
        kind = image.manifest().headers["Content-Type"]
        await http.put("/manifests/1", content=image.manifest().content, headers={"Content-Type": kind})
    (fetcher.folder / f"{digest(LOWER)}.part").write_bytes(LOWER[:100_000])
    job = await fetcher.run(Command(op_id="op", uri=f"{docker_registry}/team/echo:1"), lambda artifact: None)
    assert (job.bytes_reused, job.bytes_fetched) == (100_000, len(LOWER) - 100_000)


async def _until_up(http: httpx2.AsyncClient, path: str) -> httpx2.Response:
    async with asyncio.timeout(20):
        while True:
            try:
                return await http.post(path)
            except httpx2.ConnectError:
                await asyncio.sleep(0.05)
