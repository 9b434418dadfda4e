"""Every fault of a web server or registry leads to a specific reason and leaves no files behind."""

import asyncio
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from nodesmith.agent.operations.failures import from_os_error
from nodesmith.contracts.nats.messages import Command
from nodesmith.domain.operation import Reason
from tests.agent.archives import digest
from tests.agent.fetching import CONTENT, Fetcher, failure_of
from tests.agent.registry import publish
from tests.agent.web import Served, Web

HALF = 1_500_000


@dataclass(frozen=True)
class Fault:
    """A fault of the source, the expected reason, and how many bytes are kept for a retry."""

    name: str
    reason: Reason
    how: dict[str, Any] = field(default_factory=dict)
    words: str = ""
    kept: int = 0
    does: Callable[[Served], None] = lambda file: None
    rules: dict[str, Any] = field(default_factory=dict)


def _other_content(file: Served) -> None:
    file.content = os.urandom(len(file.content))


def _shorter(file: Served) -> None:
    file.content = file.content[:HALF]
    file.tells_size = True


FAULTS = [
    Fault("wrong digest", Reason.BAD_DIGEST, words="sha256", does=_other_content),
    Fault("404", Reason.DOWNLOAD_FAILED, {"status": 404}, "404"),
    Fault("401", Reason.SOURCE_DENIED, {"status": 401}, "401"),
    Fault("403", Reason.SOURCE_DENIED, {"status": 403}, "403"),
    Fault("5xx", Reason.SOURCE_DOWN, {"status": 503, "headers": {"Retry-After": "7"}}, "503"),
    Fault("429", Reason.SOURCE_DOWN, {"status": 429, "headers": {"Retry-After": "7"}}, "429"),
    Fault("redirect loop", Reason.DOWNLOAD_FAILED, {"status": 302}, "redirect"),
    Fault("slow-loris header", Reason.DOWNLOAD_FAILED, {"silent": True}, rules={"header": 0.2, "tries": 2}),
    Fault("slow-loris body", Reason.DOWNLOAD_FAILED, {"drips": True}, "too slowly", kept=1024, rules={"idle": 0.2}),
    Fault("stalled body", Reason.DOWNLOAD_FAILED, {"stops_at": HALF}, kept=HALF, rules={"idle": 0.2}),
    Fault("truncated body", Reason.DOWNLOAD_FAILED, {"always_breaks_at": HALF}, kept=HALF, rules={"tries": 2}),
    Fault("Content-Length too large", Reason.DOWNLOAD_FAILED, {"claims": 9_000_000}, kept=HALF, does=_shorter),
    Fault("Content-Length too small", Reason.DOWNLOAD_FAILED, {"claims": HALF}, "ended after", kept=HALF),
]


@dataclass
class Subject:
    """One source of the content, and the command that requests it."""

    served: Served
    path: str
    command: Command


def _web(site: Web) -> Subject:
    served = site.serve("/a", CONTENT)
    return Subject(served, "/a", Command(op_id="op", uri=f"{site.url}/a", sha256=digest(CONTENT), size=len(CONTENT)))


def _registry(site: Web) -> Subject:
    image = publish(site, [CONTENT])
    return Subject(image.blob(), image.blob_path(), Command(op_id="op", uri=f"oci://{image.reference}"))


SOURCES = {"web": _web, "registry": _registry}


def _nothing(_artifact: object) -> None:
    pytest.fail("the block must not be entered")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("source", SOURCES)
async def test_a_fault_has_a_reason_and_leaves_no_trace(fetcher: Fetcher, site: Web, source: str, fault: Fault):
    subject = SOURCES[source](site)
    for name, value in fault.how.items():
        setattr(subject.served, name, value)
    if fault.how.get("status") == 302:
        subject.served.headers = {"Location": site.url + subject.path}
    fault.does(subject.served)
    fetcher.build(**fault.rules)
    failure = await failure_of(fetcher.run(subject.command, _nothing))
    subject.served.released.set()
    assert failure.reason is fault.reason, str(failure)
    assert fault.words in str(failure)
    if "headers" in fault.how:
        assert failure.retry_after_s == 7.0
    assert fetcher.kept() <= fault.kept
    if not fault.kept:
        assert list(fetcher.folder.iterdir()) == []


@pytest.mark.parametrize("source", SOURCES)
async def test_stalling_source_is_retried_while_bytes_arrive(fetcher, site, source):
    """Five tries without progress are a failure; a thousand with progress are not."""
    subject = SOURCES[source](site)
    subject.served.breaks_at = HALF
    fetcher.build(tries=5)
    job = await fetcher.run(subject.command, lambda artifact: None)
    assert job.bytes_fetched == len(CONTENT)


async def test_five_times_without_progress_is_a_failed_attempt(fetcher, site):
    subject = _web(site)
    subject.served.always_breaks_at = 0
    fetcher.build(tries=5)
    failure = await failure_of(fetcher.run(subject.command, _nothing))
    assert (failure.reason, len(site.requests("/a"))) == (Reason.DOWNLOAD_FAILED, 5)


@pytest.mark.parametrize("obeys", [True, False], ids=["If-Range obeyed", "If-Range ignored"])
async def test_changed_etag_restarts_the_download(fetcher, site, obeys):
    """Without a digest, only the ETag shows that two halves belong to different files."""
    old, new = os.urandom(len(CONTENT)), CONTENT
    served = site.serve("/a", old, stops_at=HALF)
    fetcher.build(tries=3)
    fetching = asyncio.create_task(fetcher.fetch(f"{site.url}/a"))
    await asyncio.to_thread(served.reached.wait, 10)
    served.content, served.etag, served.ignores_if_range = new, '"v2"', not obeys
    served.stops_at, served.cut = None, True
    served.released.set()
    job = await fetching
    assert job.bytes_fetched >= len(new)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the file size, so that the kernel refuses further writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("source", SOURCES)
async def test_a_disk_that_is_full_in_the_middle_keeps_nothing(fetcher, site, source):
    subject = SOURCES[source](site)
    with largest_file(HALF), pytest.raises(OSError, match="too large") as failure:
        await fetcher.run(subject.command, _nothing)
    assert from_os_error(failure.value).reason is Reason.NO_DISK
    assert list(fetcher.folder.iterdir()) == []


@pytest.mark.parametrize("source", SOURCES)
async def test_no_request_is_sent_without_space_for_payload_and_reserve(fetcher, site, source):
    subject = SOURCES[source](site)
    fetcher.build(headroom=10**18)
    failure = await failure_of(fetcher.run(subject.command, _nothing))
    assert failure.reason is Reason.NO_DISK
    assert site.requests(subject.path) == []
    assert list(fetcher.folder.iterdir()) == []


# mirrors ------------------------------------------------------------------------------------------------------

UNFIT = [fault for fault in FAULTS if fault.name not in ("slow-loris header", "slow-loris body", "stalled body")]


@pytest.mark.parametrize("fault", UNFIT, ids=lambda fault: fault.name)
async def test_mirror_delivers_after_any_fault_of_the_first_source(fetcher, site, fault):
    subject = _web(site)
    site.serve("/mirror", CONTENT, etag='"m"')
    for name, value in fault.how.items():
        setattr(subject.served, name, value)
    if fault.how.get("status") == 302:
        subject.served.headers = {"Location": site.url + subject.path}
    fault.does(subject.served)
    command = subject.command.model_copy(update={"mirrors": [f"{site.url}/none", f"{site.url}/mirror"]})
    await fetcher.run(command, lambda artifact: None)
    assert [seen.path for seen in site.seen][-2:] == ["/none", "/mirror"]
    assert fetcher.kept() == 0


async def test_connection_with_a_wrong_length_is_not_reused(fetcher, site):
    """The surplus bytes would be read as the mirror's response."""
    subject = _web(site)
    subject.served.claims = subject.served.stops_at = HALF
    site.serve("/mirror", CONTENT, etag='"m"')
    fetcher.build(header=2.0)
    await fetcher.run(subject.command.model_copy(update={"mirrors": [f"{site.url}/mirror"]}), lambda artifact: None)
    assert [seen.path for seen in site.seen] == ["/a", "/a", "/mirror"]


async def test_mirror_resumes_the_download_of_the_first_source(fetcher, site):
    subject = _web(site)
    subject.served.always_breaks_at = HALF
    site.serve("/mirror", CONTENT, etag='"m"')
    job = await fetcher.run(subject.command.model_copy(update={"mirrors": [f"{site.url}/mirror"]}), lambda _: None)
    assert job.bytes_fetched == len(CONTENT)
    assert site.requests("/mirror")[0].headers["Range"] == f"bytes={HALF}-"


async def test_failures_of_all_sources_are_named_and_a_recoverable_one_decides(fetcher, site):
    site.serve("/a", b"", status=404)
    site.serve("/b", b"", status=503, headers={"Retry-After": "9"})
    failure = await failure_of(fetcher.fetch(f"{site.url}/a", sha256="0" * 64, mirrors=[f"{site.url}/b"]))
    assert (failure.reason, failure.retry_after_s) == (Reason.SOURCE_DOWN, 9.0)
    assert "404" in str(failure)
    assert "503" in str(failure)


# limits -------------------------------------------------------------------------------------------------------


async def test_the_bandwidth_limit_holds_for_all_downloads_together(fetcher, site):
    site.serve("/a", CONTENT)
    site.serve("/b", CONTENT)
    fetcher.build(bytes_a_second=6_000_000)
    began = asyncio.get_running_loop().time()
    await asyncio.gather(fetcher.fetch(f"{site.url}/a"), fetcher.fetch(f"{site.url}/b"))
    assert asyncio.get_running_loop().time() - began >= 0.9


async def test_the_total_is_known_before_the_first_byte(fetcher, site):
    site.serve("/a", CONTENT)
    await fetcher.fetch(f"{site.url}/a")
    assert {tick.bytes_total for tick in fetcher.ticks if tick.bytes_done} == {len(CONTENT)}


async def test_a_node_may_refuse_archives_without_a_digest(fetcher, site):
    site.serve("/a", CONTENT)
    fetcher.build(require_digest=True)
    failure = await failure_of(fetcher.fetch(f"{site.url}/a"))
    assert (failure.reason, site.seen) == (Reason.REFUSED_BY_NODE, [])
