"""The guides to backends, signed galleries and sources do what they say: their commands run against a real API."""

import asyncio
import hashlib
import os
import re
import sys
from pathlib import Path

import httpx2
import yaml

from tests.api.station import ADMIN_TOKEN, Api, until

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = ("make-a-backend.md", "sign-galleries.md", "use-sources-behind-passwords.md")


def commands() -> str:
    text = "\n".join((GUIDES / page).read_text() for page in PAGES)
    return "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


async def run(api: Api, folder: Path, script: str) -> str:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NODESMITH_URL": api.url,
        "NODESMITH_TOKEN": ADMIN_TOKEN,
    }
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "bash", "-euo", "pipefail", "-c", script, cwd=folder, env=environment, stdout=pipe, stderr=pipe
    )
    said, complained = await process.communicate()
    assert process.returncode == 0, complained.decode()
    return said.decode()


async def test_the_guide_makes_a_backend_that_runs(api: Api, tmp_path: Path) -> None:
    said = await run(api, tmp_path, commands())
    entry = yaml.safe_load((tmp_path / "clock-1.0.yaml").read_text())[0]
    archive = tmp_path / "clock-1.0.tar.gz"
    assert entry["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert "Uploaded clock 1.0" in said
    assert "Added mine: 1 backends." in said
    assert "Configured registry.example:5000." in said
    assert "mine: signed, index version 1, 1 backends." in said
    assert "sha256 from the signed index of the gallery mine, version 1; signatures by 1 of the keys" in said
    uploaded = api.deps.catalogue.resolve("clock")
    assert uploaded is not None
    assert uploaded.sha256 == entry["sha256"]
    await run(api, tmp_path, f"mkdir live && tar --extract --file {archive.name} --directory live")
    await answers(tmp_path / "live")


async def answers(folder: Path) -> None:
    """Start it as a node does, and ask."""
    with_python = {**os.environ, "PYTHON": sys.executable}
    listening = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    listening.close()
    await listening.wait_closed()
    process = await asyncio.create_subprocess_exec(
        folder / "run.sh", "--addr", f"127.0.0.1:{port}", env=with_python, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert await until(lambda: _status(http), lambda status: status != 0) == 200
    finally:
        process.kill()
        await process.wait()


async def _status(http: httpx2.AsyncClient) -> int:
    try:
        return (await http.get("/healthz")).status_code
    except httpx2.TransportError:
        return 0
