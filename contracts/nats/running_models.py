"""NATS messages about running models: list, unload, stop and delete them, and read their logs."""

from pydantic import Field

from nodesmith.contracts.nats.wire import Message, Signed


class LogsQuestion(Message):
    """`backend.logs`: read the output of a backend. Without `cursor` the tail; with it, newer output, waited for."""

    backend: str = ""
    """a process key, or a backend's name; empty: list the keys"""
    cursor: int | None = None
    lines: int = 200
    wait_s: float = 0.0
    """follow: reply when there is more output, at the latest after this time"""


class LogsReply(Message):
    keys: list[str] = Field(default_factory=list)
    """the processes that have a log"""
    key: str = ""
    lines: list[str] = Field(default_factory=list)
    cursor: int = 0
    """where the next request continues"""
    error: str = ""


class RunningModel(Message):
    model_id: str
    replica_index: int = 0
    address: str = ""
    """as seen on the node: 127.0.0.1:<port>"""
    # protocol 2
    backend: str = ""
    version: str = ""


class RunningModels(Message):
    """Reply to `models.running`, without processes that are being stopped."""

    models: list[RunningModel] = Field(default_factory=list)
    error: str = ""

    def encode(self) -> bytes:
        """Include empty lists and every index: LocalAI's readers expect them."""
        return self.model_dump_json(exclude_none=True).encode()


class ModelQuestion(Message):
    """`model.unload`, `model.stop` and `model.delete`."""

    model_name: str = ""
    address: str = ""
    process_key: str = ""
    expected_address: str = ""
    force: bool = False
    # protocol 2
    signed: Signed | None = None
    """the same message, signed: our own agents read only this"""


class ModelReply(Message):
    """Reply to `model.unload` and `model.delete`."""

    success: bool = False
    error: str = ""


class ModelStopped(Message):
    """Reply to `model.stop`, sent when the process has ended. If nothing runs: `terminated` without `matched`."""

    matched: bool = False
    freed: bool = False
    terminated: bool = False
    process_key: str = ""
    address: str = ""
    error: str = ""
