"""What runs here, for those who ask: list, stop, unload, delete, and read its output."""

import asyncio
import glob
import shutil
import time
from pathlib import Path, PurePosixPath

import structlog

from agent import logs
from agent.launch import Record
from agent.logs import LogRing, Piece
from agent.supervisor import Keeper, Supervisor
from contracts.messages import (
    Command,
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
_LONGEST_WAIT_S = 30.0
_LOOK_AGAIN_S = 0.2
_MOST_LINES = 2000


class Models:
    """Answers within seconds, whatever operations are going on."""

    def __init__(self, supervisor: Supervisor, home: Path, log_limit: int) -> None:
        self._supervisor = supervisor
        self._logs = home / "logs"
        self._models = home / "models"
        self._log_limit = log_limit

    async def running(self) -> RunningModels:
        return RunningModels(models=[_shown(keeper.record) for keeper in self._supervisor.serving()])

    async def unload(self, question: ModelQuestion) -> ModelReply:
        """Free what a model holds: only ending its process surely does. Nothing there is a success."""
        found = [keeper for keeper in self._named(question.model_name) if _is_at(keeper, question.address)]
        survivors = await self._supervisor.stop(found, _GRACE_S)
        if survivors:
            return ModelReply(error=f"{survivors[0].record.key} does not end.")
        return ModelReply(success=True)

    async def stop(self, question: ModelQuestion) -> ModelStopped:
        """One process by its key, if it is where the asker believes it to be; the answer comes after its end."""
        key = question.process_key or f"{question.model_name}#0"
        keeper = self._supervisor.get(key)
        if keeper is None:
            return ModelStopped(terminated=True, process_key=key)
        found = ModelStopped(matched=True, process_key=key, address=keeper.record.address)
        if not _is_at(keeper, question.expected_address):
            return found.model_copy(update={"error": f"It listens on {keeper.record.address}."})
        if keeper.is_stopping:
            return found.model_copy(update={"error": "It is being stopped already."})
        survivors = await self._supervisor.stop([keeper], 0.0 if question.force else _GRACE_S)
        gone = not survivors
        return found.model_copy(update={"freed": gone, "terminated": gone, "error": "" if gone else "It does not end."})

    async def delete(self, question: ModelQuestion) -> ModelReply:
        """The files of a model; a name that would lead out of their folder is refused."""
        name = PurePosixPath(question.model_name)
        if not name.parts or name.is_absolute() or ".." in name.parts:
            return ModelReply(error=f"{question.model_name!r} is no name of a model.")
        try:
            await asyncio.to_thread(_delete, self._models / name)
        except OSError as error:
            return ModelReply(error=error.strerror or str(error))
        return ModelReply(success=True)

    async def stop_backend(self, command: Command) -> None:
        """A backend, a model, or one process key; nothing at all means everything."""
        found = self._named(command.backend) if command.backend else self._supervisor.everything()
        log.info("stop.asked", backend=command.backend, processes=len(found))
        await self._supervisor.stop(found, 0.0 if command.force else _GRACE_S)

    async def logs(self, question: LogsQuestion) -> LogsReply:
        there = await asyncio.to_thread(logs.keys, self._logs)
        if not question.backend:
            return LogsReply(keys=there)
        key = self._key_of(question.backend, there)
        if key is None:
            return LogsReply(keys=there, error=f"Nothing of {question.backend} has run here.")
        piece = await self._read(LogRing(self._logs, key, self._log_limit), question)
        return LogsReply(keys=there, key=key, lines=piece.lines, cursor=piece.cursor)

    async def _read(self, ring: LogRing, question: LogsQuestion) -> Piece:
        """Now, or as soon as there is more."""
        lines = min(max(question.lines, 1), _MOST_LINES)
        if question.cursor is None:
            return await asyncio.to_thread(ring.tail, lines)
        deadline = time.monotonic() + min(question.wait_s, _LONGEST_WAIT_S)
        while True:
            piece = await asyncio.to_thread(ring.since, question.cursor, lines)
            if piece.lines or time.monotonic() >= deadline:
                return piece
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _named(self, name: str) -> list[Keeper]:
        """By key, by model, or by backend."""
        return [
            keeper
            for keeper in self._supervisor.everything()
            if name in (keeper.record.key, keeper.record.model_id, keeper.record.backend, keeper.record.family)
        ]

    def _key_of(self, name: str, there: list[str]) -> str | None:
        """As it is asked for, else what runs now, else the newest of that name."""
        running = [keeper.record.log_key for keeper in self._named(name)]
        newest = [key for key in there if name in (key.rsplit("@", 1)[0], key.rsplit("#", 1)[0])]
        return next((key for key in [name, *running, *newest] if key in there), None)


def _shown(record: Record) -> RunningModel:
    return RunningModel(
        model_id=record.model_id,
        replica_index=record.replica,
        address=record.address,
        backend=record.backend,
        version=record.version,
    )


def _is_at(keeper: Keeper, address: str) -> bool:
    """The asker may know this node under another name: the port decides."""
    return not address or address.rsplit(":", 1)[-1] == str(keeper.record.port)


def _delete(path: Path) -> None:
    """The folder, or the file with everything that is called like it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
        return
    for each in [path, *path.parent.glob(f"{glob.escape(path.name)}.*")]:
        each.unlink(missing_ok=True)
