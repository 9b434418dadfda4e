"""The upload folder: files of a killed API are deleted, files that another one is writing stay."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

from nodesmith.gallery.upload_folder import UploadFolder


async def body() -> AsyncIterator[bytes]:
    yield b"\x1f\x8b of an archive"


async def test_an_upload_that_a_killed_api_left_is_dropped_after_a_day(tmp_path: Path) -> None:
    old, fresh = tmp_path / ".upload-old", tmp_path / ".upload-fresh"
    for left in (old, fresh):
        left.write_bytes(b"half")
    os.utime(old, (1, 1))
    stored = await UploadFolder(tmp_path, limit=1000).take("clock", "1", body())
    assert fresh.exists()
    assert (tmp_path / stored.file).exists()
    assert not old.exists()
