import json

import pytest
from pydantic import ValidationError

from nodesmith.contracts.nats.messages import (
    Answer,
    BackendList,
    CancelAnswer,
    CancelCommand,
    CancelMode,
    CancelReply,
    Command,
    CommandReply,
    Installed,
    NodeOperationStatus,
    OpQuestion,
    OpReply,
    Outcome,
    Progress,
    Result,
)
from nodesmith.contracts.nats.presence import Heartbeat, Resources
from nodesmith.contracts.nats.wire import Message
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Phase, Reason

OUTCOME = Outcome(
    op_id="op",
    node_id="n1",
    family="echo",
    decision=7,
    result=Result.SUCCEEDED,
    changed=True,
    before=Installed(name="echo", version="1"),
    after=Installed(name="echo", version="2", digest="sha256:ab"),
    bytes_fetched=10,
)

MESSAGES = [
    Command(backend="echo", op_id="op", kind=Kind.INSTALL, decision=7, size=3, sha256="ab"),
    CommandReply(success=True, op_id="op", answer=Answer.ENDED, outcome=OUTCOME),
    OUTCOME,
    Progress(op_id="op", percentage=0.0, phase=Phase.DOWNLOADING, seq=3, bytes_done=5, eta_s=1.5),
    OpQuestion(op_id="op"),
    OpReply(op_id="op", standing=NodeOperationStatus.RUNNING, progress=Progress(op_id="op")),
    CancelCommand(op_id="op", mode=CancelMode.KEEP),
    CancelReply(op_id="op", answer=CancelAnswer.STOPPED, stopped_after_s=0.2, bytes_done=9),
    Heartbeat(node_id="n1", boot_id="b", seq=1, open_ops=["op"], resources=Resources(available_disk=0)),
    BackendList(backends=[Installed(name="echo", is_system=True)]),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_the_same_after_the_wire(message: Message) -> None:
    assert type(message).decode(message.encode()) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_fields_of_a_newer_peer_are_ignored(message: Message) -> None:
    newer = json.dumps({**json.loads(message.encode()), "from_tomorrow": {"x": 1}}).encode()
    assert type(message).decode(newer) == message


@pytest.mark.parametrize("payload", [b"", b"not json", b"[]", b"null", b'{"op_id": 1}', b'{"backend": []}'])
def test_anything_else_on_a_subject_is_refused_as_a_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        OpReply.decode(payload)


@pytest.mark.parametrize("backends", ["null", "[]"])
def test_a_localai_worker_without_backends_sends_null(backends: str) -> None:
    assert BackendList.decode(f'{{"backends":{backends}}}'.encode()).backends == []


def test_an_absent_list_is_empty_too() -> None:
    assert BackendList.decode(b"{}").backends == []


def test_a_reply_of_an_old_localai_worker_is_understood() -> None:
    reply = CommandReply.decode(b'{"success":true,"address":"10.0.0.4:50051"}')
    assert (reply.success, reply.address, reply.answer) == (True, "10.0.0.4:50051", Answer.UNKNOWN)
    assert not reply.reports_stopped_processes


def test_a_backend_entry_of_a_localai_worker_is_understood() -> None:
    entry = b'{"name":"llama-cpp","is_system":false,"is_meta":false,"installed_at":"2026-05-01T02:03:04+02:00"}'
    listed = BackendList.decode(b'{"backends":[' + entry + b"]}").backends[0]
    assert (listed.name, listed.version, listed.digest) == ("llama-cpp", "", "")
    assert listed.installed_at is not None
    assert listed.installed_at.utcoffset() is not None


def test_what_is_not_set_stays_off_the_wire() -> None:
    assert json.loads(Command(backend="echo").encode()) == {"backend": "echo"}
    assert json.loads(Command(backend="echo", force=True).encode()) == {"backend": "echo", "force": True}


def test_progress_always_carries_its_percentage() -> None:
    assert json.loads(Progress(op_id="op").encode())["percentage"] == 0.0


def test_zero_resources_and_unknown_resources_differ() -> None:
    sent = json.loads(Heartbeat(node_id="n1", resources=Resources(available_disk=0)).encode())
    assert sent["resources"] == {"available_disk": 0}


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (b'{"op_id":"op","answer":"postponed"}', "answer"),
        (b'{"op_id":"op","reason":"sunspots"}', "reason"),
    ],
)
def test_enum_values_of_a_newer_agent_read_as_unknown(payload: bytes, field: str) -> None:
    assert getattr(CommandReply.decode(payload), field).name == "UNKNOWN"


def test_a_phase_of_a_newer_agent_reads_as_unknown() -> None:
    assert Progress.decode(b'{"op_id":"op","phase":"warming"}').phase is Phase.UNKNOWN


def test_a_reason_may_be_absent() -> None:
    assert Outcome.decode(b'{"op_id":"op","result":"succeeded"}').reason is None
    assert Outcome.decode(b'{"op_id":"op","reason":"no_disk"}').reason is Reason.NO_DISK


def test_an_outcome_without_identity_is_refused() -> None:
    with pytest.raises(ValidationError):
        Outcome.decode(b'{"result":"succeeded"}')


def test_messages_cannot_be_changed_on_the_way() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        OUTCOME.result = Result.FAILED  # type: ignore[misc]
