"""A whole agent over real NATS and HTTP: commands, changes on disk, reports."""

import asyncio
import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from nodesmith.bus.connection import Bus
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.messages import (
    Answer,
    CancelAnswer,
    CancelCommand,
    CancelMode,
    Command,
    NodeOperationStatus,
    Outcome,
    Progress,
    Result,
)
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Phase, Reason
from tests.agent import archives
from tests.agent.archives import big, built, digest, packed, regular
from tests.agent.backends import ECHO
from tests.agent.nodes import LONG, Node, StartAgent
from tests.agent.waiting import until
from tests.servers import NatsForTests

ECHO_1 = packed(run_sh=b"echo 1")
ECHO_2 = packed(run_sh=b"echo 2")


async def test_an_install_ends_with_the_new_version_live(start_agent: StartAgent):
    node = await start_agent()
    outcome = await node.outcome_of(node.command(ECHO_1))
    assert (outcome.result, outcome.changed, outcome.bytes_fetched) == (Result.SUCCEEDED, True, len(ECHO_1))
    assert outcome.before is None
    assert outcome.after is not None
    assert (outcome.after.version, outcome.after.digest) == ("1", f"sha256:{digest(ECHO_1)}")
    assert (node.live() / "run.sh").read_bytes() == b"echo 1"
    (listed,) = (await node.control.list_backends(node.id, within=LONG)).backends
    assert (listed.name, listed.version, listed.digest) == ("echo", "1", outcome.after.digest)


async def test_installed_version_is_not_fetched_again(start_agent: StartAgent):
    """S35."""
    node = await start_agent()
    await node.outcome_of(node.command(ECHO_1))
    command = node.command(ECHO_1)
    outcome = await node.outcome_of(command)
    assert (outcome.result, outcome.changed, outcome.bytes_fetched) == (Result.SUCCEEDED, False, 0)
    assert len(node.site.requests(command.uri)) == 1
    forced = await node.outcome_of(node.command(ECHO_1, force=True))
    assert (forced.changed, len(node.site.requests(command.uri))) == (True, 2)


async def test_without_a_digest_the_same_content_changes_nothing(start_agent: StartAgent):
    node = await start_agent()
    await node.outcome_of(node.command(ECHO_1, sha256=""))
    before = node.tree()
    outcome = await node.outcome_of(node.command(ECHO_1, sha256=""))
    assert (outcome.result, outcome.changed) == (Result.SUCCEEDED, False)
    assert node.tree() == before


async def test_an_upgrade_keeps_the_previous_version(start_agent: StartAgent):
    node = await start_agent()
    await node.outcome_of(node.command(ECHO_1))
    outcome = await node.outcome_of(node.command(ECHO_2, version="2", kind=Kind.UPGRADE))
    assert outcome.before is not None
    assert outcome.after is not None
    assert (outcome.before.version, outcome.after.version) == ("1", "2")
    assert outcome.after.previous_version == "1"
    assert (node.live() / "run.sh").read_bytes() == b"echo 2"
    assert (node.live().parent / "previous" / "run.sh").read_bytes() == b"echo 1"


async def test_previous_version_is_dropped_and_not_reported_without_headroom(own_disk: Path, start_agent: StartAgent):
    """The new version fills the disk when it starts."""
    script = '#!/bin/sh\nhead -c 100000000 /dev/zero > "$HOME/filler"\nexec "${PYTHON:-python3}" server.py "$@"\n'
    greedy = built(
        regular("run.sh", script.encode()),
        regular("server.py", (ECHO / "server.py").read_bytes()),
        regular("release.json", b'{"version": "2", "healthy": true, "signs_answers": true}'),
    )
    node = await start_agent(disk_headroom=shutil.disk_usage(own_disk).free - 50_000_000, keep_backends=False)
    await node.outcome_of(node.command(ECHO_1))
    outcome = await node.outcome_of(node.command(greedy, version="2", kind=Kind.UPGRADE, start=True))
    assert (outcome.result, outcome.reason) == (Result.SUCCEEDED, None)
    assert outcome.after is not None
    assert (outcome.after.version, outcome.after.previous_version) == ("2", "")
    assert {path.name for path in node.live().parent.iterdir()} == {"2", "current"}
    (listed,) = (await node.control.list_backends(node.id, within=LONG)).backends
    assert (listed.version, listed.previous_version) == ("2", "")


@pytest.mark.parametrize("kind", [Kind.INSTALL, Kind.UPGRADE, Kind.ROLLBACK, Kind.REMOVE])
async def test_every_kind_reports_on_the_subject_of_an_install(
    start_agent: StartAgent, nats_server: NatsForTests, kind: Kind
):
    """S24: no new subject, so no new permission, and subscribers of installs receive upgrades too."""
    node = await start_agent()
    await node.outcome_of(node.command(ECHO_1))
    await node.outcome_of(node.command(ECHO_2, version="2", kind=Kind.UPGRADE))
    spoken: set[str] = set()
    everything = nats_server.issuer.unconfined("listener", timedelta(hours=1))
    listening = Bus(nats_server.url, lambda: everything, name="test", sends_requests=False)
    listening.start()
    assert await listening.wait_up(LONG)

    async def hear(message: Msg) -> None:
        spoken.add(message.subject)

    await listening.subscribe(f"nodes.{node.id}.backend.>", hear)
    command = node.command(packed(run_sh=b"echo 3"), version="3", kind=kind)
    await node.outcome_of(command)
    await listening.close()
    asked = {subjects.install(node.id), subjects.upgrade(node.id), subjects.delete(node.id)}
    progress, outcome = subjects.progress(node.id, command.op_id), subjects.outcome(node.id, command.op_id)
    assert spoken - asked == ({outcome} if kind is Kind.REMOVE else {progress, outcome})


async def test_removal_deletes_all_versions_and_a_repeat_changes_nothing(start_agent: StartAgent):
    node = await start_agent()
    await node.outcome_of(node.command(ECHO_1))
    first = await node.outcome_of(node.command(b"", kind=Kind.REMOVE))
    second = await node.outcome_of(node.command(b"", kind=Kind.REMOVE))
    assert first.before is not None
    assert (first.result, first.changed, first.before.version) == (Result.SUCCEEDED, True, "1")
    assert (second.result, second.changed) == (Result.SUCCEEDED, False)
    assert node.tree() == {}


async def test_rollback_restores_the_previous_version_without_download(start_agent: StartAgent):
    node = await start_agent()
    await node.outcome_of(node.command(ECHO_1))
    await node.outcome_of(node.command(ECHO_2, version="2", kind=Kind.UPGRADE))
    asked = len(node.site.seen)
    outcome = await node.outcome_of(node.command(b"", kind=Kind.ROLLBACK, uri="", sha256="", size=0))
    assert outcome.before is not None
    assert outcome.after is not None
    assert (outcome.result, outcome.changed, outcome.bytes_fetched) == (Result.SUCCEEDED, True, 0)
    assert (outcome.before.version, outcome.after.version, outcome.after.previous_version) == ("2", "1", "2")
    assert (node.live() / "run.sh").read_bytes() == b"echo 1"
    assert len(node.site.seen) == asked


async def test_backend_that_is_not_installed_cannot_be_upgraded_or_rolled_back(start_agent: StartAgent):
    node = await start_agent()
    for kind in (Kind.UPGRADE, Kind.ROLLBACK):
        outcome = await node.outcome_of(node.command(ECHO_1, kind=kind))
        assert (outcome.result, outcome.reason) == (Result.FAILED, Reason.NOT_INSTALLED)
    await node.outcome_of(node.command(ECHO_1))
    outcome = await node.outcome_of(node.command(ECHO_1, kind=Kind.ROLLBACK))
    assert (outcome.result, outcome.reason) == (Result.FAILED, Reason.NO_PREVIOUS_VERSION)
    assert [request.path for request in node.site.seen] == [node.command(ECHO_1).uri]


async def test_upgrade_to_the_installed_version_reports_no_change(start_agent: StartAgent):
    node = await start_agent()
    await node.outcome_of(node.command(ECHO_1))
    outcome = await node.outcome_of(node.command(ECHO_1, kind=Kind.UPGRADE))
    assert (outcome.result, outcome.changed, outcome.bytes_fetched) == (Result.SUCCEEDED, False, 0)


async def test_backend_without_run_sh_is_installed_again(start_agent: StartAgent):
    node = await start_agent()
    await node.outcome_of(node.command(ECHO_1))
    (node.live() / "run.sh").unlink()
    outcome = await node.outcome_of(node.command(ECHO_1))
    assert (outcome.result, outcome.changed) == (Result.SUCCEEDED, True)
    assert (node.live() / "run.sh").exists()


async def test_installs_beyond_the_limit_wait(start_agent: StartAgent):
    node = await start_agent(parallel_operations=1)
    first = node.command(big(1_000_000))
    node.served(first).stops_at = 500_000
    await node.send(first)
    second = node.command(ECHO_2, family="other")
    assert (await node.send(second)).answer is Answer.ACCEPTED
    removal = await node.outcome_of(node.command(b"", family="third", kind=Kind.REMOVE))
    assert removal.result is Result.SUCCEEDED
    assert node.site.requests(second.uri) == []
    async with node.control.attach(node.id, second.op_id) as reports:
        node.served(first).released.set()
        while not isinstance(report := await reports.next(LONG), Outcome):
            assert report is not None
    assert report.result is Result.SUCCEEDED


BAD: dict[str, tuple[bytes, dict[str, Any], Reason]] = {
    **{f"escape: {name}": (content, {}, Reason.ARCHIVE_ESCAPES) for name, content in archives.ESCAPES.items()},
    **{f"damaged: {name}": (content, {}, Reason.BAD_ARCHIVE) for name, content in archives.DAMAGED.items() if content},
    "other digest": (ECHO_2, {"sha256": "0" * 64}, Reason.BAD_DIGEST),
    "not there": (ECHO_2, {"uri": "/artifacts/none.tar.gz"}, Reason.DOWNLOAD_FAILED),
    "no such scheme": (ECHO_2, {"uri": "ftp://host/image"}, Reason.REFUSED_BY_NODE),
    "no text in a name": (archives.ESCAPES["a name that is no text"], {}, Reason.ARCHIVE_ESCAPES),
    "no run.sh": (packed(read_me=b"hello"), {}, Reason.BAD_ARCHIVE),
    "larger than the disk": (ECHO_2, {"size": 10**18}, Reason.NO_DISK),
}


async def test_failure_reports_its_reason_and_keeps_the_installed_version(start_agent: StartAgent):
    node = await start_agent()
    await node.outcome_of(node.command(ECHO_1))
    before = node.tree()
    for name, (content, fields, reason) in BAD.items():
        outcome = await node.outcome_of(node.command(content, version="2", **fields))
        assert (outcome.result, outcome.reason) == (Result.FAILED, reason), name
        assert outcome.error.isprintable(), name
        assert node.tree() == before, name
    assert node.partial_bytes() == 0


async def test_files_unpacked_from_a_wrong_partial_file_are_replaced(start_agent: StartAgent):
    """Files are unpacked during the download, so discarded bytes must take their files with them."""
    node = await start_agent()
    content, wrong = big(2_000_000), archives.built(archives.regular("evil"), archives.regular("run.sh", b"evil"))
    (node.home / "downloads" / f"{digest(content)}.part").write_bytes(wrong)
    outcome = await node.outcome_of(node.command(content))
    assert outcome.result is Result.SUCCEEDED, outcome.error
    assert {path.name for path in node.live().iterdir()} == {"run.sh", "payload", "metadata.json"}
    assert (node.live() / "run.sh").read_bytes() == b"#!/bin/sh\n"


async def test_retry_after_of_a_source_is_reported(start_agent: StartAgent):
    node = await start_agent()
    command = node.command(ECHO_1)
    node.site.serve(command.uri, b"", status=503, headers={"Retry-After": "30"})
    outcome = await node.outcome_of(command)
    assert (outcome.result, outcome.reason, outcome.retry_after_s) == (Result.FAILED, Reason.SOURCE_DOWN, 30)
    node.site.serve(command.uri, ECHO_1)
    again = await node.outcome_of(command.model_copy(update={"decision": 2}))
    assert again.result is Result.SUCCEEDED


async def test_missing_disk_space_is_detected_before_the_download(start_agent: StartAgent):
    node = await start_agent(disk_headroom=10**18)
    command = node.command(ECHO_1)
    outcome = await node.outcome_of(command)
    assert (outcome.reason, node.site.requests(command.uri)) == (Reason.NO_DISK, [])


# progress -----------------------------------------------------------------------------------------------------


async def ticks_of(node: Node, command: Command) -> list[Progress]:
    """Send a command; return its outcome and all progress reports."""
    ticks: list[Progress] = []
    async with node.control.attach(node.id, command.op_id) as reports:
        await node.send(command)
        while isinstance(report := await reports.next(LONG), Progress):
            ticks.append(report)
        assert isinstance(report, Outcome)
    return ticks


async def test_a_second_try_reports_its_progress_as_the_first_did(start_agent: StartAgent):
    """G9; S25, superseded: a retry after a back-off reports on the same subject, under its own decision."""
    node, content = await start_agent(progress_interval=0), big(3_000_000)
    command = node.command(content)
    node.site.serve(command.uri, b"", status=404)
    assert (await node.outcome_of(command)).result is Result.FAILED
    node.site.serve(command.uri, content)
    ticks = await ticks_of(node, command.model_copy(update={"decision": 2}))
    assert {tick.decision for tick in ticks} == {2}
    assert 0 < max(tick.bytes_done for tick in ticks) <= len(content)


async def test_progress_rises_through_the_phases_and_is_never_complete(start_agent: StartAgent):
    node = await start_agent(progress_interval=0)
    content = big(3_000_000)
    ticks = await ticks_of(node, node.command(content))
    assert [tick.bytes_done for tick in ticks] == sorted(tick.bytes_done for tick in ticks)
    assert [tick.seq for tick in ticks] == sorted({tick.seq for tick in ticks})
    assert max(tick.percentage for tick in ticks) < 100
    assert {tick.bytes_total for tick in ticks} == {len(content)}
    assert ticks[-1].phase in (Phase.EXTRACTING, Phase.SWAPPING)


# one at a time, attach, cancel ---------------------------------------------------------------------------------


async def test_twenty_identical_commands_are_one_download(start_agent: StartAgent):
    node = await start_agent()
    command = node.command(big(1_000_000))
    node.served(command).stops_at = 500_000
    replies = await asyncio.gather(*(node.send(command) for _ in range(20)))
    assert sorted(reply.answer for reply in replies) == [Answer.ACCEPTED] + [Answer.ATTACHED] * 19
    async with node.control.attach(node.id, command.op_id) as reports:
        node.served(command).released.set()
        while not isinstance(report := await reports.next(LONG), Outcome):
            assert report is not None
    assert (report.result, len(node.site.requests(command.uri))) == (Result.SUCCEEDED, 1)


async def test_second_operation_on_a_backend_gets_busy_with_the_holder(start_agent: StartAgent):
    node = await start_agent()
    first = node.command(big(1_000_000))
    node.served(first).stops_at = 500_000
    await node.send(first)
    reply = await node.send(node.command(ECHO_2, version="2"))
    assert (reply.answer, reply.busy_op_id) == (Answer.BUSY, first.op_id)
    assert (await node.outcome_of(node.command(ECHO_2, family="other"))).result is Result.SUCCEEDED
    await node.control.cancel(node.id, CancelCommand(op_id=first.op_id), within=LONG)


async def test_a_cancel_stops_the_bytes_and_leaves_the_tree_untouched(start_agent: StartAgent):
    node = await start_agent()
    await node.outcome_of(node.command(ECHO_1))
    before = node.tree()
    command = node.command(big(2_000_000), version="2")
    served = node.served(command)
    served.stops_at = 1_000_000
    await node.send(command)
    await until(served.reached.is_set, pause=0.01)
    reply = await node.control.cancel(node.id, CancelCommand(op_id=command.op_id), within=LONG)
    assert (reply.answer, reply.bytes_done <= 1_000_000) == (CancelAnswer.STOPPED, True)
    assert 0 <= reply.stopped_after_s < 10
    served.released.set()
    assert (await node.send(command.model_copy(update={"decision": 99}))).answer is Answer.REFUSED
    asked = await node.control.ask(node.id, command.op_id, within=LONG)
    assert asked.outcome is not None
    assert (asked.standing, asked.outcome.result) == (NodeOperationStatus.ENDED, Result.CANCELLED)
    assert node.tree() == before
    assert list((node.home / "downloads").iterdir()) == []
    assert len(node.site.requests(command.uri)) == 1


async def test_cancel_with_keep_leaves_the_bytes_for_the_next_operation(start_agent: StartAgent):
    node = await start_agent()
    content = big(2_000_000)
    command = node.command(content)
    served = node.served(command)
    served.stops_at = 1_000_000
    await node.send(command)
    await until(lambda: node.partial_bytes() == 1_000_000, pause=0.01)
    await node.control.cancel(node.id, CancelCommand(op_id=command.op_id, mode=CancelMode.KEEP), within=LONG)
    served.released.set()
    outcome = await node.outcome_of(node.command(content))
    assert (outcome.result, outcome.bytes_reused) == (Result.SUCCEEDED, 1_000_000)
    assert outcome.bytes_fetched == len(content) - 1_000_000


async def test_a_cancel_in_the_middle_of_unpacking_leaves_the_tree_untouched(start_agent: StartAgent):
    node = await start_agent(progress_interval=0)
    await node.outcome_of(node.command(ECHO_1))
    before = node.tree()
    members = [archives.regular(f"file-{number}", os.urandom(20_000)) for number in range(1500)]
    command = node.command(archives.built(*members), version="2")
    async with node.control.attach(node.id, command.op_id) as reports:
        await node.send(command)
        while not (isinstance(report := await reports.next(LONG), Progress) and report.phase is Phase.EXTRACTING):
            assert isinstance(report, Progress)
        reply = await node.control.cancel(node.id, CancelCommand(op_id=command.op_id), within=LONG)
    assert reply.answer is CancelAnswer.STOPPED
    assert node.tree() == before


async def test_a_cancel_after_the_end_is_too_late(start_agent: StartAgent):
    node = await start_agent()
    command = node.command(ECHO_1)
    outcome = await node.outcome_of(command)
    reply = await node.control.cancel(node.id, CancelCommand(op_id=command.op_id), within=LONG)
    assert reply.outcome is not None
    assert (reply.answer, reply.outcome.result) == (CancelAnswer.TOO_LATE, outcome.result)
