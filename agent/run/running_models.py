"""Lists, stops, unloads and deletes models on this node, and reads backend logs."""

import asyncio
import glob
import shutil
import time
from pathlib import Path, PurePosixPath

import structlog

from nodesmith.agent.run import logs
from nodesmith.agent.run.backend_process import ProcessRecord
from nodesmith.agent.run.logs import LogChunk, LogRing
from nodesmith.agent.run.supervisor import ProcessKeeper, Supervisor
from nodesmith.contracts.nats.messages import Command
from nodesmith.contracts.nats.running_models import (
    LogsQuestion,
    LogsReply,
    ModelQuestion,
    ModelReply,
    ModelStopped,
    RunningModel,
    RunningModels,
)

log = structlog.stdlib.get_logger(__name__)

_GRACE_S = 5.0
_MAX_WAIT_S = 30.0
_POLL_S = 0.2
_MAX_LINES = 2000


class AgentModels:
    """Answers within seconds, independent of running operations."""

    def __init__(self, supervisor: Supervisor, home: Path, log_limit: int) -> None:
        self._supervisor = supervisor
        self._logs = home / "logs"
        self._models = home / "models"
        self._log_limit = log_limit

    async def running(self) -> RunningModels:
        return RunningModels(models=[_to_running_model(keeper.record) for keeper in self._supervisor.serving()])

    async def unload(self, question: ModelQuestion) -> ModelReply:
        """Free a model's resources by stopping its processes; succeeds if none runs."""
        found = [keeper for keeper in self._named(question.model_name) if _listens_at(keeper, question.address)]
        survivors = await self._supervisor.stop(found, _GRACE_S)
        if survivors:
            return ModelReply(error=f"{survivors[0].record.key} does not end.")
        return ModelReply(success=True)

    async def stop(self, question: ModelQuestion) -> ModelStopped:
        """Stop one process by key if it listens where the caller expects; replies after it has ended."""
        key = question.process_key or f"{question.model_name}#0"
        keeper = self._supervisor.get(key)
        if keeper is None:
            return ModelStopped(terminated=True, process_key=key)
        found = ModelStopped(matched=True, process_key=key, address=keeper.record.address)
        if not _listens_at(keeper, question.expected_address):
            return found.model_copy(update={"error": f"It listens on {keeper.record.address}."})
        if keeper.is_stopping:
            return found.model_copy(update={"error": "It is being stopped already."})
        survivors = await self._supervisor.stop([keeper], 0.0 if question.force else _GRACE_S)
        gone = not survivors
        return found.model_copy(update={"freed": gone, "terminated": gone, "error": "" if gone else "It does not end."})

    async def delete(self, question: ModelQuestion) -> ModelReply:
        """Delete the files of a model; refuses a name that leaves the models folder."""
        name = PurePosixPath(question.model_name)
        if not name.parts or name.is_absolute() or ".." in name.parts:
            return ModelReply(error=f"{question.model_name!r} is no name of a model.")
        try:
            await asyncio.to_thread(_delete, self._models / name)
        except OSError as error:
            return ModelReply(error=error.strerror or str(error))
        return ModelReply(success=True)

    async def stop_backend(self, command: Command) -> None:
        """Stop the processes of a backend, model or process key; an empty name stops everything."""
        found = self._named(command.backend) if command.backend else self._supervisor.everything()
        log.info("stop.requested", backend=command.backend, processes=len(found))
        await self._supervisor.stop(found, 0.0 if command.force else _GRACE_S)

    async def logs(self, question: LogsQuestion) -> LogsReply:
        available = await asyncio.to_thread(logs.keys, self._logs)
        if not question.backend:
            return LogsReply(keys=available)
        key = self._key_of(question.backend, available)
        if key is None:
            return LogsReply(keys=available, error=f"Nothing of {question.backend} has run here.")
        chunk = await self._read(LogRing(self._logs, key, self._log_limit), question)
        return LogsReply(keys=available, key=key, lines=chunk.lines, cursor=chunk.cursor)

    async def _read(self, ring: LogRing, question: LogsQuestion) -> LogChunk:
        """Return the next chunk, waiting for new lines if the question allows it."""
        lines = min(max(question.lines, 1), _MAX_LINES)
        if question.cursor is None:
            return await asyncio.to_thread(ring.tail, lines)
        deadline = time.monotonic() + min(question.wait_s, _MAX_WAIT_S)
        while True:
            chunk = await asyncio.to_thread(ring.since, question.cursor, lines)
            if chunk.lines or time.monotonic() >= deadline:
                return chunk
            await asyncio.sleep(_POLL_S)

    def _named(self, name: str) -> list[ProcessKeeper]:
        """Find processes by key, model or backend."""
        return [
            keeper
            for keeper in self._supervisor.everything()
            if name in (keeper.record.key, keeper.record.model_id, keeper.record.backend, keeper.record.family)
        ]

    def _key_of(self, name: str, available: list[str]) -> str | None:
        """Resolve a log key: the exact name, else a running process, else the newest log of that name."""
        running = [keeper.record.log_key for keeper in self._named(name)]
        newest = [key for key in available if name in (key.rsplit("@", 1)[0], key.rsplit("#", 1)[0])]
        return next((key for key in [name, *running, *newest] if key in available), None)


def _to_running_model(record: ProcessRecord) -> RunningModel:
    return RunningModel(
        model_id=record.model_id,
        replica_index=record.replica,
        address=record.address,
        backend=record.backend,
        version=record.version,
    )


def _listens_at(keeper: ProcessKeeper, address: str) -> bool:
    """Compare ports only, because the caller may know this node under another host name."""
    return not address or address.rsplit(":", 1)[-1] == str(keeper.record.port)


def _delete(path: Path) -> None:
    """Delete the folder, or the file and all files named `<name>.*`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
        return
    for each in [path, *path.parent.glob(f"{glob.escape(path.name)}.*")]:
        each.unlink(missing_ok=True)
