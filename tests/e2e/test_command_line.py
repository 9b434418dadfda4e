"""The commands of the README, against the real API over a real socket."""

import asyncio
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Fleet, offer
from tests.e2e.slow_source import SlowSource, package


async def run(fleet: Fleet, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return await asyncio.to_thread(fleet.machine.run, *arguments)


async def answer(fleet: Fleet, *arguments: str) -> Any:
    done = await run(fleet, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_readme_command_works(fleet: Fleet) -> None:
    done = await run(fleet, "backends", "install", "echo", "--on", "agent-1", "--watch")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("succeeded: install echo 2 on agent-1")
    assert (fleet.live("agent-1", "echo") / "run.sh").is_file()


async def test_every_local_request_bypasses_a_dead_proxy(fleet: Fleet) -> None:
    """Lists, a stream, an upload and a joining node: all requests go to this machine."""
    dead = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    behind = Fleet(replace(fleet.machine, environment={**dead, "NO_PROXY": ""}))
    assert await answer(behind, "nodes", "ls")
    assert (await answer(behind, "status"))["fleet"] is not None
    watched = await run(behind, "backends", "install", "echo", "--on", "agent-1", "--force", "--watch")
    assert watched.returncode == 0, watched.stderr
    invite = await answer(behind, "nodes", "invite")
    home = str(fleet.machine.folder.parent / "joined-behind-a-proxy")
    joining = ["agent", "join", fleet.url, invite["token"], "--name", "behind-a-proxy", "--no-run"]
    joined = await asyncio.to_thread(replace(behind.machine, folder=Path(home)).run, *joining)
    assert joined.returncode == 0, joined.stderr
    assert await answer(behind, "nodes", "rm", "behind-a-proxy")
    await behind.http.aclose()


async def test_nodes_are_listed_and_shown_by_name_and_by_id(fleet: Fleet) -> None:
    listed = {node["name"]: node["id"] for node in await answer(fleet, "nodes", "ls")}
    assert {"agent-1", "agent-2", "agent-3"} <= set(listed)
    by_name, by_id = [await answer(fleet, "nodes", "show", who) for who in ("agent-2", listed["agent-2"])]
    assert by_name["id"] == by_id["id"] == listed["agent-2"]
    assert (await run(fleet, "nodes", "ls")).stdout.startswith("NAME")


async def test_a_node_shows_what_is_on_its_disk(fleet: Fleet, source: SlowSource) -> None:
    wanted = offer(source, "cli-listed", package(1000))
    await answer_of_install(fleet, "agent-3", wanted)
    shown = await answer(fleet, "nodes", "show", "agent-3")
    assert "cli-listed" in [entry["name"] for entry in shown["backends"]]
    assert "cli-listed" in (await run(fleet, "nodes", "show", "agent-3")).stdout


async def answer_of_install(fleet: Fleet, node: str, wanted: dict[str, object]) -> "subprocess.CompletedProcess[str]":
    uri, name, sha256 = (str(wanted[part]) for part in ("uri", "name", "sha256"))
    return await run(
        fleet, "backends", "install", name, "--on", node, "--uri", uri, "--sha256", sha256, "--watch", "--json"
    )


async def test_json_watch_ends_with_the_final_state(fleet: Fleet, source: SlowSource) -> None:
    source.bytes_per_second = 2_000_000
    done = await answer_of_install(fleet, "agent-2", offer(source, "cli-watched", package(3_000_000)))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert lines[0]["type"] == "accepted"
    assert {line["type"] for line in lines} == {"accepted", "operation", "progress"}
    assert (lines[-1]["type"], lines[-1]["state"], lines[-1]["op_id"]) == ("operation", "succeeded", lines[0]["op_id"])
    counts = [line["bytes_done"] for line in lines if line["type"] == "progress"]
    assert counts == sorted(counts)


async def test_a_failed_install_is_exit_code_1_with_a_remedy(fleet: Fleet, source: SlowSource) -> None:
    wanted = {**offer(source, "cli-bad", package(1000)), "sha256": "0" * 64}
    done = await answer_of_install(fleet, "agent-1", wanted)
    last = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, last["state"], last["reason"]) == (1, "failed", "bad_digest")
    shown = await run(fleet, "ops", "show", last["op_id"])
    assert "Compare the digest in the gallery" in shown.stdout
    assert last["op_id"] in (await run(fleet, "ops", "ls")).stdout


async def test_watcher_sees_a_cancelled_install(fleet: Fleet, source: SlowSource) -> None:
    source.bytes_per_second = 200_000
    watching = asyncio.create_task(answer_of_install(fleet, "agent-1", offer(source, "cli-slow", package(5_000_000))))
    await source.going.wait()
    (slow,) = [op for op in await answer(fleet, "ops", "ls", "--node", "agent-1") if op["backend"] == "cli-slow"]
    accepted = await answer(fleet, "ops", "cancel", slow["op_id"], "--reason", "changed my mind")
    assert accepted["state"] == "cancelling"
    done = await watching
    last = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, last["state"]) == (1, "cancelled")
    assert "changed my mind" in last["message"]


@pytest.mark.parametrize(
    ("arguments", "sentence", "remedy"),
    [
        (("backends", "install", "nope", "--on", "agent-1"), "No gallery has the backend nope.", "backends ls"),
        (("backends", "install", "echo", "--on", "nope"), "There is no node nope.", "nodes ls"),
        (("ops", "show", "nope"), "There is no operation nope.", "ops ls"),
        (("ops", "cancel", "nope"), "There is no operation nope.", "ops ls"),
        (("nodes", "show", "nope"), "There is no node nope.", "nodes ls"),
    ],
)
async def test_refusal_prints_one_sentence_and_a_remedy(
    fleet: Fleet, arguments: tuple[str, ...], sentence: str, remedy: str
) -> None:
    done = await run(fleet, *arguments)
    said = done.stderr.splitlines()
    assert done.returncode == 1
    assert said[0] == f"error: {sentence}"
    assert remedy in said[1]


async def test_wrong_token_and_wrong_address_are_different_errors(fleet: Fleet) -> None:
    done = await run(fleet, "nodes", "ls", "--url", fleet.url, "--token", "wrong")
    assert (done.returncode, "token" in done.stderr) == (1, True)


async def test_batch_is_planned_watched_and_summarized(fleet: Fleet, source: SlowSource) -> None:
    wanted = offer(source, "cli-batch", package(1000))
    options = ("--uri", str(wanted["uri"]), "--sha256", str(wanted["sha256"]), "--on", "agent-1", "--on", "agent-2")
    planned = await run(fleet, "backends", "install", "cli-batch", *options, "--dry-run")
    assert planned.stdout.startswith("cli-batch: 2 nodes, 0 skipped. Nothing was started.")
    done = await run(fleet, "backends", "install", "cli-batch", *options, "--watch")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "completed: install cli-batch: done on 2 of 2 nodes"
    assert all((fleet.live(node, "cli-batch") / "run.sh").is_file() for node in ("agent-1", "agent-2"))
    [batch] = [each for each in await answer(fleet, "batches", "ls") if each["backend"] == "cli-batch"]
    assert batch["counts"] == {"succeeded": 2}
    history = await answer(fleet, "ops", "history", "--batch", batch["batch_id"])
    assert {(each["node_name"], each["state"]) for each in history} == {
        ("agent-1", "succeeded"),
        ("agent-2", "succeeded"),
    }


async def test_a_failed_operation_is_retried_and_dismissed(fleet: Fleet, source: SlowSource) -> None:
    done = await answer_of_install(fleet, "agent-3", {**offer(source, "cli-again", package(1000)), "sha256": "0" * 64})
    failed = json.loads(done.stdout.splitlines()[-1])["op_id"]
    again = await run(fleet, "ops", "retry", failed, "--watch", "--json")
    last = json.loads(again.stdout.splitlines()[-1])
    assert (again.returncode, last["reason"], last["retry_of"]) == (1, "bad_digest", failed)
    looked = await run(fleet, "ops", "dismiss", "--backend", "cli-again")
    assert (looked.returncode, "2 to dismiss. Nothing was changed" in looked.stdout) == (1, True)
    assert (await run(fleet, "ops", "dismiss", "--backend", "cli-again", "--yes")).returncode == 0
    assert "cli-again" not in (await run(fleet, "ops", "ls")).stdout


async def test_hold_names_actor_and_reason(fleet: Fleet) -> None:
    held = await run(fleet, "hold", "--reason", "cable work")
    try:
        assert "by admin: cable work" in held.stdout
    finally:
        released = await run(fleet, "release")
    assert released.stdout == "No hold is set.\n"
