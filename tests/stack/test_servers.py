"""Each embedded server, started as the stack and the tests start it."""

import os
import signal
import socket
import stat
from pathlib import Path

import psutil
import psycopg
import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from nodesmith.contracts.temporal.operations import SEARCH_ATTRIBUTES
from nodesmith.stack.errors import StackError
from nodesmith.stack.servers import embedded
from nodesmith.stack.servers.postgres import PostgresServer
from tests.servers import NatsForTests, PostgresForTests, TemporalForTests, free_port


async def test_postgres_is_version_18_in_utf8_and_wants_its_password(postgres_server: PostgresForTests):
    url = await postgres_server.create_database()
    with psycopg.connect(url) as connection:
        version, encoding = connection.execute(
            "SELECT current_setting('server_version_num')::int / 10000, current_setting('server_encoding')"
        ).fetchone() or (0, "")
    assert (version, encoding) == (18, "UTF8")
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(url.replace(postgres_server.server.password, "wrong"))


async def test_a_database_can_be_cloned_from_another(postgres_server: PostgresForTests):
    template = await postgres_server.create_database("cloned_from")
    with psycopg.connect(template) as connection:
        connection.execute("CREATE TABLE thing (id int)")
    with psycopg.connect(await postgres_server.create_database(template="cloned_from")) as connection:
        assert connection.execute("SELECT count(*) FROM thing").fetchone() == (0,)


async def test_postgres_never_runs_as_root(postgres_server: PostgresForTests):
    assert psutil.Process(postgres_server.child.pid).uids().effective != 0


async def test_killed_postgres_restarts_although_another_process_has_its_pid(tmp_path: Path):
    server = PostgresServer(folder=tmp_path / "pg", port=free_port(), password="p", log=tmp_path / "pg.log")
    child = await embedded.start(server)
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    pid_file = tmp_path / "pg" / "data" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    async with embedded.running(server):
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


async def test_pid_file_of_a_running_postgres_stays_although_the_clock_was_set(tmp_path: Path):
    server = PostgresServer(folder=tmp_path / "pg", port=free_port(), password="p", log=tmp_path / "pg.log")
    async with embedded.running(server):
        pid_file = tmp_path / "pg" / "data" / "postmaster.pid"
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join([*lines[:2], str(int(lines[2]) - 3600), *lines[3:]]) + "\n")
        await server.prepare()
        assert pid_file.exists()


async def test_stale_pid_file_of_a_killed_postgres_is_ignored(tmp_path: Path):
    server = PostgresServer(folder=tmp_path / "pg", port=free_port(), password="p", log=tmp_path / "pg.log")
    child = await embedded.start(server)
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    await server.prepare()
    assert not await server.answers()


async def test_failed_server_start_reports_the_reason(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = PostgresServer(folder=tmp_path / "pg", port=port, password="p", log=tmp_path / "pg.log")
        with pytest.raises(StackError, match=r"postgres ended with exit code 1 .*could not create any TCP/IP sockets"):
            await embedded.start(server)


async def test_the_configuration_of_nats_is_readable_by_its_owner_only(nats_server: NatsForTests):
    config = nats_server.server.folder / "nats.conf"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600


async def test_temporal_keeps_closed_runs_for_30_days_and_knows_our_search_attributes(
    temporal_server: TemporalForTests,
):
    client = await Client.connect(temporal_server.server.address)
    namespace = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
    assert namespace.config.workflow_execution_retention_ttl.ToTimedelta().days == 30
    known = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace="default"))
    assert {key.name for key in SEARCH_ATTRIBUTES} <= set(known.custom_attributes)


async def test_temporal_writes_ahead_and_syncs(temporal_server: TemporalForTests):
    assert temporal_server.server.database.with_name("temporal.db-wal").exists()
    arguments = psutil.Process(temporal_server.child.pid).cmdline()
    assert "synchronous=full" in arguments
    assert "matching.numTaskqueueReadPartitions=1" in arguments


@pytest.mark.parametrize("fixture", ["postgres_server", "nats_server", "temporal_server"])
def test_every_server_listens_on_loopback_only(fixture: str, request: pytest.FixtureRequest):
    process = psutil.Process(request.getfixturevalue(fixture).child.pid)
    addresses = {c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
    assert addresses == {"127.0.0.1"}
