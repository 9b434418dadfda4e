"""The journal survives a restart of the agent."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nodesmith.agent.operations.journal import KEPT, DiskJournal, JournalEntry, JournalStatus
from nodesmith.contracts.nats.messages import Command, Outcome, Result


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "journal"


@pytest.fixture
def journal(folder):
    journal = DiskJournal(folder)
    journal.load()
    yield journal
    journal.close()


def reopened(folder: Path) -> tuple[DiskJournal, list[JournalEntry]]:
    """Load the journal as a restarted agent does; return it and the unsettled entries."""
    journal = DiskJournal(folder)
    unsettled = journal.load()
    journal.close()
    return journal, unsettled


async def test_an_ended_operation_is_found_again_as_it_was(journal, folder):
    outcome = Outcome(op_id="op", result=Result.SUCCEEDED, bytes_fetched=7)
    entry = JournalEntry(
        op_id="op", standing=JournalStatus.ENDED, decision=3, command=Command(uri="/a"), outcome=outcome
    )
    await journal.put(entry)
    again, unsettled = reopened(folder)
    assert (again.get("op"), unsettled) == (entry, [])


async def test_running_entry_is_unsettled_until_written_as_interrupted(journal, folder):
    await journal.put(
        JournalEntry(op_id="op", standing=JournalStatus.RUNNING, decision=3, command=Command(family="echo"))
    )
    again, (ran,) = reopened(folder)
    assert ran == again.get("op")
    interrupted = ran.interrupted()
    assert interrupted.standing is JournalStatus.INTERRUPTED
    outcome = interrupted.outcome
    assert outcome is not None
    assert (outcome.result, outcome.decision, outcome.family) == (Result.INTERRUPTED, 3, "echo")
    await journal.put(interrupted)
    assert reopened(folder)[1] == []


async def test_the_last_of_many_writes_is_what_stays(journal, folder):
    await asyncio.gather(
        *(
            journal.put(JournalEntry(op_id="op", standing=JournalStatus.ENDED, decision=decision))
            for decision in range(50)
        )
    )
    last = reopened(folder)[0].get("op")
    assert last is not None
    assert last.decision == 49


async def test_files_are_private_and_no_draft_is_left(journal, folder):
    await journal.put(JournalEntry(op_id="op", standing=JournalStatus.CANCELLED))
    (file,) = folder.iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == ("op.json", 0o600)
    assert json.loads(file.read_bytes())["standing"] == "cancelled"


@pytest.mark.parametrize("op_id", ["../../evil", "/etc/passwd", ".", "a" * 500, "a/b", "x\0y"])
async def test_any_op_id_maps_to_a_file_in_the_folder(journal, folder, op_id):
    await journal.put(JournalEntry(op_id=op_id, standing=JournalStatus.CANCELLED))
    assert len(list(folder.iterdir())) == 1
    found = reopened(folder)[0].get(op_id)
    assert found is not None
    assert found.standing is JournalStatus.CANCELLED


async def test_a_damaged_file_is_set_aside_and_the_rest_is_read(journal, folder):
    await journal.put(JournalEntry(op_id="good", standing=JournalStatus.CANCELLED))
    (folder / "bad.json").write_text("{")
    again, _ = reopened(folder)
    assert again.get("good") is not None
    assert (folder / "bad.unreadable").exists()


async def test_old_entries_are_forgotten(journal, folder):
    old = datetime.now(UTC) - KEPT - timedelta(days=1)
    await journal.put(JournalEntry(op_id="old", standing=JournalStatus.ENDED, at=old))
    await journal.put(JournalEntry(op_id="new", standing=JournalStatus.ENDED))
    again, _ = reopened(folder)
    assert again.get("old") is None
    assert [path.name for path in folder.iterdir()] == ["new.json"]


async def test_tombstones_are_kept_for_thirty_days_by_an_agent_that_never_restarts(journal, folder):
    now = datetime.now(UTC)
    for op_id, age in (("young", 29), ("old", 31)):
        await journal.put(JournalEntry(op_id=op_id, standing=JournalStatus.CANCELLED, at=now - timedelta(days=age)))
    await journal.put(JournalEntry(op_id="runs", standing=JournalStatus.RUNNING, at=now - timedelta(days=99)))
    await journal.prune()
    assert {path.name for path in folder.iterdir()} == {"young.json", "runs.json"}
    assert journal.get("old") is None
    assert journal.get("young") is not None


def test_file_that_cannot_be_read_does_not_keep_the_agent_from_starting(tmp_path: Path) -> None:
    """A failing disk: reading one entry raises an OS error, the others are read."""
    folder = tmp_path / "journal"
    (folder / "broken.json").mkdir(parents=True)
    assert DiskJournal(folder).load() == []
