"""Breaks in how a node unpacks archives."""

import os
from pathlib import PurePosixPath
from typing import Any

from tests.mutations.arming import Break, rules


def _write_over_what_is_there(original: Any, path: Any, mode: Any) -> Any:
    del original
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)


def _look_through_every_link(original: Any, self: Any, path: Any) -> Any:
    for link in [link for link in self.links if PurePosixPath(path) in PurePosixPath(link).parents]:
        self.links.pop(link)
    return original(self, path)


def _look_at_every_folder_again(original: Any, self: Any, folder: Any) -> Any:
    self._emptied.clear()
    return original(self, folder)


def _write_into_it(original: Any, self: Any, path: Any, make: Any) -> Any:
    try:
        return make()
    except FileExistsError:
        if make.func is not os.open:
            return original(self, path, make)
        return os.open(make.args[0], os.O_WRONLY | os.O_TRUNC)


ARCHIVES = (
    Break(
        rules("archives"),
        "a write of the agent follows a link",
        "nodesmith.agent.disk.durable_files:_create_new",
        _write_over_what_is_there,
        tests=("test_agent_never_writes_through_a_link_from_an_archive",),
    ),
    Break(
        rules("archives"),
        "every file looks through all links",
        "nodesmith.agent.disk.archive_policy:ArchivePolicy.forget",
        _look_through_every_link,
        tests=("test_unpacking_is_linear",),
    ),
    Break(
        rules("archives"),
        "a folder is emptied again and again",
        "nodesmith.agent.disk.archive:Unpacker._empty_folder",
        _look_at_every_folder_again,
        tests=("test_unpacking_is_linear",),
    ),
    Break(
        rules("archives"),
        "a file that comes twice is written into",
        "nodesmith.agent.disk.archive:Unpacker._create_exclusively",
        _write_into_it,
        tests=("test_a_file_that_comes_twice_does_not_change_its_hard_link",),
    ),
    Break(
        rules("archives"),
        "archives may be of any depth",
        "nodesmith.agent.disk.archive_policy:MAX_DEPTH",
        lambda _: 10**6,
        tests=("test_a_damaged_archive_is_refused",),
    ),
    Break(
        rules("archives"),
        "archives may bring names of ours",
        "nodesmith.agent.disk.archive_policy:RESERVED",
        lambda _: frozenset(),
        tests=("test_a_damaged_archive_is_refused",),
    ),
)
