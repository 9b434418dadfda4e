"""Downloads from a real web server: resumed, verified, and with a specific reason on failure."""

import asyncio
import contextlib
import os
import time
from typing import Any

import pytest

from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.contracts.nats.messages import Command
from nodesmith.domain.operation import Reason
from nodesmith.gallery.registry import basic
from tests.agent import fetching
from tests.agent.archives import digest
from tests.agent.fetching import Fetcher, failure_of
from tests.agent.registry import publish
from tests.agent.waiting import until
from tests.agent.web import Web, running

CONTENT = fetching.CONTENT
HALF = 1_500_000


async def interrupt_at_half(fetcher: Fetcher, site: Web, path: str, **what) -> None:
    """Begin a download and cancel it after half of the bytes."""
    file = site.files[path]
    file.stops_at = HALF
    downloading = asyncio.create_task(fetcher.fetch(site.url + path, **what))
    await asyncio.to_thread(file.reached.wait, 10)
    await until(lambda: fetcher.kept() == HALF, pause=0.01)
    downloading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await downloading
    file.released.set()
    file.stops_at = None


@pytest.mark.parametrize("sha256", [digest(CONTENT), f"sha256:{digest(CONTENT).upper()}", ""])
async def test_a_whole_artifact_is_fetched_and_nothing_is_left_behind(fetcher, site, sha256):
    site.serve("/a", CONTENT)
    job = await fetcher.fetch(f"{site.url}/a", sha256=sha256, size=len(CONTENT))
    assert (job.bytes_fetched, job.bytes_reused) == (len(CONTENT), 0)
    assert job.gauge.bytes_done == len(CONTENT)
    assert list(fetcher.folder.iterdir()) == []


async def test_interrupted_download_resumes(fetcher, site):
    site.serve("/a", CONTENT)
    await interrupt_at_half(fetcher, site, "/a", sha256=digest(CONTENT))
    job = await fetcher.fetch(f"{site.url}/a", sha256=digest(CONTENT))
    assert (job.bytes_fetched, job.bytes_reused) == (len(CONTENT) - HALF, HALF)
    again = site.requests("/a")[-1]
    assert (again.headers["Range"], again.headers["If-Range"]) == (f"bytes={HALF}-", '"v1"')


async def test_download_resumes_from_another_source_of_the_same_digest(fetcher, site):
    site.serve("/a", CONTENT)
    site.serve("/mirror", CONTENT, etag='"other"')
    await interrupt_at_half(fetcher, site, "/a", sha256=digest(CONTENT))
    job = await fetcher.fetch(f"{site.url}/mirror", sha256=digest(CONTENT))
    assert job.bytes_reused == HALF
    assert site.requests("/mirror")[0].headers["If-Range"] is None


async def test_changed_source_is_fetched_from_the_beginning(fetcher, site):
    site.serve("/a", os.urandom(3_000_000))
    await interrupt_at_half(fetcher, site, "/a")
    site.serve("/a", CONTENT, etag='"v2"')
    job = await fetcher.fetch(f"{site.url}/a")
    assert (job.bytes_fetched, job.bytes_reused) == (len(CONTENT), 0)


@pytest.mark.parametrize("how", [{"ranges": False}, {"etag": ""}], ids=["no ranges", "no validator"])
async def test_source_that_cannot_resume_is_fetched_from_the_beginning(fetcher, site, how):
    site.serve("/a", CONTENT, **how)
    await interrupt_at_half(fetcher, site, "/a")
    job = await fetcher.fetch(f"{site.url}/a")
    assert (job.bytes_fetched, job.bytes_reused) == (len(CONTENT), 0)


async def test_a_partial_file_that_is_wrong_is_thrown_away_once(fetcher, site):
    """A power failure may leave zeros in the file, which is not the source's fault."""
    site.serve("/a", CONTENT)
    (fetcher.folder / f"{digest(CONTENT)}.part").write_bytes(bytes(HALF))
    job = await fetcher.fetch(f"{site.url}/a", sha256=digest(CONTENT))
    assert job.bytes_reused == 0
    assert len(site.requests("/a")) == 2


async def test_a_partial_file_that_is_too_long_is_thrown_away(fetcher, site):
    site.serve("/a", CONTENT)
    (fetcher.folder / f"{digest(CONTENT)}.part").write_bytes(CONTENT + b"more")
    job = await fetcher.fetch(f"{site.url}/a", sha256=digest(CONTENT))
    assert job.bytes_fetched == len(CONTENT)


async def test_a_complete_partial_file_needs_no_source(fetcher, site):
    (fetcher.folder / f"{digest(CONTENT)}.part").write_bytes(CONTENT)
    job = await fetcher.fetch(f"{site.url}/gone", sha256=digest(CONTENT))
    assert (job.bytes_fetched, job.bytes_reused, site.seen) == (0, len(CONTENT), [])


async def test_broken_connection_is_resumed(fetcher, site):
    site.serve("/a", CONTENT, breaks_at=HALF)
    fetcher.build(tries=5)
    job = await fetcher.fetch(f"{site.url}/a", sha256=digest(CONTENT))
    assert job.bytes_fetched == len(CONTENT)
    assert len(site.requests("/a")) == 2


async def test_a_wrong_digest_is_named_and_nothing_is_kept(fetcher, site):
    site.serve("/a", CONTENT)
    failure = await failure_of(fetcher.fetch(f"{site.url}/a", sha256="0" * 64))
    assert failure.reason is Reason.BAD_DIGEST
    assert "0" * 64 in str(failure)
    assert digest(CONTENT) not in str(failure)
    assert fetcher.kept() == 0


async def test_a_source_that_sends_more_than_announced_is_stopped(fetcher, site):
    site.serve("/a", CONTENT, tells_size=False)
    failure = await failure_of(fetcher.fetch(f"{site.url}/a", sha256=digest(CONTENT), size=1000))
    assert failure.reason is Reason.BAD_DIGEST
    assert fetcher.kept() == 0


async def test_without_space_nothing_is_asked_of_the_source(fetcher, site):
    site.serve("/a", CONTENT)
    fetcher.build(headroom=10**18)
    failure = await failure_of(fetcher.fetch(f"{site.url}/a", size=len(CONTENT)))
    assert (failure.reason, site.seen) == (Reason.NO_DISK, [])


async def test_a_size_that_only_the_source_knows_is_checked_before_the_body(fetcher, site):
    free = os.statvfs(fetcher.folder.parent)
    spare = free.f_bavail * free.f_frsize
    file = site.serve("/a", CONTENT, stops_at=65536)
    fetcher.build(headroom=spare - 100_000_000)
    file.content = b"\0" * 300_000_000
    failure = await failure_of(fetcher.fetch(f"{site.url}/a"))
    assert failure.reason is Reason.NO_DISK
    assert fetcher.kept() == 0


@pytest.mark.parametrize(
    ("status", "headers", "reason", "retry_after"),
    [
        (404, {}, Reason.DOWNLOAD_FAILED, None),
        (401, {}, Reason.SOURCE_DENIED, None),
        (403, {}, Reason.SOURCE_DENIED, None),
        (410, {}, Reason.DOWNLOAD_FAILED, None),
        (500, {}, Reason.SOURCE_DOWN, None),
        (503, {"Retry-After": "7"}, Reason.SOURCE_DOWN, 7.0),
        (429, {"Retry-After": "120"}, Reason.SOURCE_DOWN, 120.0),
        (503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, Reason.SOURCE_DOWN, 0.0),
        (503, {"Retry-After": "soon"}, Reason.SOURCE_DOWN, None),
    ],
)
async def test_http_status_of_a_source_maps_to_a_reason(fetcher, site, status, headers, reason, retry_after):
    site.serve("/a", b"", status=status, headers=headers)
    failure = await failure_of(fetcher.fetch(f"{site.url}/a?secret=1"))
    assert (failure.reason, failure.retry_after_s) == (reason, retry_after)
    assert str(status) in str(failure)
    assert "secret" not in str(failure)


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9/a", "http://no-such-host.invalid/a"], ids=["refused", "no name"])
async def test_a_source_that_cannot_be_reached_is_down(fetcher, uri):
    assert (await failure_of(fetcher.fetch(uri))).reason is Reason.SOURCE_DOWN


async def test_refusal_of_a_uri_does_not_show_its_query(fetcher):
    """Viewers read the failure; a presigned query is a secret."""
    failure = await failure_of(fetcher.fetch("ftp://host/a.tar.gz?signature=hush"))
    assert "ftp://host/a.tar.gz" in str(failure)
    assert "hush" not in str(failure)


@pytest.mark.parametrize("uri", ["//evil.example/a", "ftp://host/a", "echo", "", "file://host/a", "javascript:x"])
async def test_unsupported_uri_is_refused(fetcher, uri):
    assert (await failure_of(fetcher.fetch(uri))).reason is Reason.REFUSED_BY_NODE


async def test_a_file_is_fetched_from_the_disk(fetcher, tmp_path):
    source = tmp_path / "with space.tar.gz"
    source.write_bytes(CONTENT)
    job = await fetcher.fetch(source.as_uri(), sha256=digest(CONTENT))
    assert job.bytes_fetched == len(CONTENT)


async def test_a_file_that_is_not_there_is_a_failed_download(fetcher, tmp_path):
    failure = await failure_of(fetcher.fetch((tmp_path / "none").as_uri()))
    assert failure.reason is Reason.DOWNLOAD_FAILED


async def test_only_the_control_plane_sees_the_credential(fetcher, site):
    site.serve("/artifacts/a", CONTENT)
    await fetcher.fetch("/artifacts/a")
    await fetcher.fetch(f"{site.url}/artifacts/a")
    own, foreign = site.requests("/artifacts/a")
    assert own.headers["Authorization"] == "Bearer my-credential"
    assert foreign.headers["Authorization"] is None


async def test_a_redirect_of_the_control_plane_is_not_followed_with_the_credential(fetcher, site):
    site.serve("/elsewhere", CONTENT)
    site.serve("/artifacts/a", b"", status=302, headers={"Location": f"{site.url}/elsewhere"})
    assert (await failure_of(fetcher.fetch("/artifacts/a"))).reason is Reason.DOWNLOAD_FAILED
    assert site.requests("/elsewhere") == []
    site.serve("/public", b"", status=302, headers={"Location": f"{site.url}/elsewhere"})
    await fetcher.fetch(f"{site.url}/public")


async def test_two_jobs_on_one_digest_share_one_download_after_another(fetcher, site):
    """The second job never sees a file that the first one is writing."""
    site.serve("/a", CONTENT)
    await asyncio.gather(*(fetcher.fetch(f"{site.url}/a", sha256=digest(CONTENT)) for _ in range(3)))


async def test_invalid_digest_cannot_name_a_file_outside_the_folder(fetcher, site, tmp_path):
    site.serve("/a", CONTENT)
    failure = await failure_of(fetcher.fetch(f"{site.url}/a", sha256="../../evil"))
    assert failure.reason is Reason.BAD_DIGEST
    assert {path.name for path in tmp_path.iterdir()} == {"downloads"}


async def test_discarding_removes_what_was_kept(fetcher, site):
    site.serve("/a", CONTENT)
    await interrupt_at_half(fetcher, site, "/a", sha256=digest(CONTENT))
    assert fetcher.kept() == HALF
    await fetcher.downloads.discard(Command(sha256=digest(CONTENT)))
    assert list(fetcher.folder.iterdir()) == []


async def test_discarding_does_not_disturb_another_job_on_the_same_artifact(fetcher, site):
    file = site.serve("/a", CONTENT, stops_at=HALF)
    other = asyncio.create_task(fetcher.fetch(f"{site.url}/a", sha256=digest(CONTENT)))
    await until(lambda: fetcher.kept() == HALF, pause=0.01)
    await asyncio.wait_for(fetcher.downloads.discard(Command(sha256=digest(CONTENT))), 5)
    file.released.set()
    assert (await other).bytes_fetched == len(CONTENT)


async def test_partial_files_unused_for_a_day_are_deleted(fetcher, site):
    old, new = fetcher.folder / "old.part", fetcher.folder / "new.part"
    for path in (old, new):
        path.write_bytes(b"x")
    for path, hours in ((old, 25), (new, 23)):
        os.utime(path, (time.time() - hours * 3600,) * 2)
    fetcher.downloads.prune()
    assert list(fetcher.folder.iterdir()) == [new]


async def test_early_end_without_content_length_is_resumed(fetcher: Fetcher, site: Web):
    """HTTP/1.0 ends a body by closing the connection; only the declared size shows that it is incomplete."""
    site.serve("/a", CONTENT, tells_size=False, breaks_at=1_000_000)
    job = await fetcher.fetch(f"{site.url}/a", sha256=digest(CONTENT), size=len(CONTENT))
    assert job.bytes_fetched == len(CONTENT)


async def test_short_range_response_is_continued(fetcher: Fetcher, site: Web):
    site.serve("/a", CONTENT, at_most=1_000_000)
    job = await fetcher.fetch(f"{site.url}/a", sha256=digest(CONTENT))
    assert job.bytes_fetched == len(CONTENT)
    assert [seen.sent for seen in site.requests("/a")] == [1_000_000] * 3


@pytest.mark.parametrize(
    "how",
    [{"ranges": False}, {"etag": 'W/"weak"'}, {"etag": ""}, {"headers": {"Content-Encoding": "gzip"}}],
    ids=["no ranges", "weak ETag", "no ETag", "called an encoding"],
)
async def test_unusual_sources_deliver_after_a_break(fetcher: Fetcher, site: Web, how: dict[str, Any]):
    site.serve("/a", CONTENT, breaks_at=1_000_000, **how)
    job = await fetcher.fetch(f"{site.url}/a", sha256=digest(CONTENT))
    assert job.bytes_fetched == len(CONTENT) + (0 if how.get("ranges", True) else 1_000_000)


@pytest.mark.parametrize("kind", ["registry", "web"])
async def test_a_redirect_to_another_host_does_not_carry_the_password(fetcher: Fetcher, site: Web, kind: str):
    login = basic("robot", "s3cret")
    host = site.url.removeprefix("http://")
    fetcher.access = {host: SourceAccess(host=host, username="robot", password="s3cret")}
    with running() as store:
        place = f"http://localhost:{store.url.rsplit(':', 1)[1]}/blob"
        store.serve("/blob", CONTENT, breaks_at=1_000_000)
        if kind == "registry":
            image = publish(site, [CONTENT], index=False, basic=login)
            moved, uri, sha256 = image.blob(), image.reference, ""
        else:
            moved, uri, sha256 = site.serve("/a", b"", basic=login), f"{site.url}/a", digest(CONTENT)
        moved.status, moved.headers = 307, {"Location": place}
        job = await fetcher.run(Command(op_id="op", uri=uri, sha256=sha256), lambda artifact: None)
        assert job.bytes_fetched == len(CONTENT)
        asked = [seen for seen in store.seen if seen.sent or seen.headers.get("Range")]
        assert {seen.headers.get("Authorization") for seen in asked} == {None}
        assert "bytes=1000000-" in [seen.headers.get("Range") for seen in asked]
