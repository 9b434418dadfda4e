"""The process: starts from its environment, and stops on SIGTERM."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from nodesmith.runtime.settings import ControlSettings
from tests.api.station import ADMIN_TOKEN, bearer, until, with_keys
from tests.deadlines import HANGS_S
from tests.servers import free_port


def environment(settings: ControlSettings, port: int) -> dict[str, str]:
    named = settings.model_dump(mode="json", exclude_defaults=True) | {"api_port": port}
    written = {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in named.items()}
    values = {f"NODESMITH_{name.upper()}": value for name, value in written.items()}
    return {**{name: value for name, value in os.environ.items() if not name.startswith("NODESMITH_")}, **values}


@asynccontextmanager
async def process(variables: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "nodesmith.api.main", env=variables, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def test_process_serves_until_sigterm_and_ends_open_streams(settings: ControlSettings) -> None:
    port = free_port()
    async with (
        process(environment(settings, port)) as api,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=bearer(ADMIN_TOKEN)) as http,
    ):
        await until(lambda: answers(http), bool)
        async with http.stream("GET", "/api/v1/events") as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            api.send_signal(signal.SIGTERM)
            async with asyncio.timeout(HANGS_S):
                assert [line async for line in lines][-1] == ""
        assert await asyncio.wait_for(api.wait(), HANGS_S) == 0


async def answers(http: httpx2.AsyncClient) -> bool:
    try:
        return (await http.get("/readyz")).status_code == 200
    except httpx2.TransportError:
        return False


async def test_automatic_approval_is_logged_as_a_warning_at_every_start(settings: ControlSettings) -> None:
    variables = {**environment(settings, free_port()), "NODESMITH_AUTO_APPROVE": "true"}
    async with process(variables) as api:
        assert api.stderr is not None
        async with asyncio.timeout(HANGS_S):
            while b"NODESMITH_AUTO_APPROVE is on" not in await api.stderr.readline():
                assert not api.stderr.at_eof()


@pytest.mark.parametrize("name", ["ADMIN_TOKEN_FILE", "REGISTRATION_TOKEN_FILE", "NATS_ACCOUNT_SEED_FILE"])
async def test_process_without_a_secret_refuses_to_start(settings: ControlSettings, name: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    variables = {**environment(settings, free_port()), f"NODESMITH_{name}": str(empty)}
    assert f"NODESMITH_{name}" in await refusal(variables)


async def test_process_with_the_root_key_of_another_installation_refuses_to_start(
    settings: ControlSettings, tmp_path: Path
) -> None:
    own, port = environment(settings, free_port()), free_port()
    async with (
        process({**own, "NODESMITH_API_PORT": str(port)}) as api,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=bearer(ADMIN_TOKEN)) as http,
    ):
        await until(lambda: answers(http), bool)
        said = await refusal({**own, "NODESMITH_ORDER_KEYS": str(with_keys(tmp_path / "foreign"))})
        assert "NODESMITH_ORDER_KEYS of the other replicas" in said
        assert api.returncode is None


async def test_process_whose_port_is_taken_says_so(settings: ControlSettings) -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert "Address already in use" in await refusal(environment(settings, port))
    server.close()


async def refusal(variables: dict[str, str]) -> str:
    """What the process says on its way out."""
    async with process(variables) as api:
        _, said = await asyncio.wait_for(api.communicate(), HANGS_S)
        assert api.returncode == 1
    return said.decode()
