"""The scripts of docs/how-to/automate.md run as they are printed there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.shapes import ACCEPTED, batch, node, operation, page
from tests.fakes.scripted_api import ScriptedApi, as_json, scripted_api

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "automate.md"
SCRIPTS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
LONGEST = 15

STARTED = {"batch_id": "b", "message": "", "operations": {"n1": "op1", "n2": "op2"}}


def run(script: str, api: ScriptedApi, folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "NODESMITH_URL": api.url, "NODESMITH_TOKEN": "t"}
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_first_script_is_short() -> None:
    batches, _operations = SCRIPTS
    assert len(batches.splitlines()) <= LONGEST


@pytest.mark.parametrize(
    ("members", "printed", "code"),
    [
        ({"n1": "succeeded", "n2": "nothing_to_do", "n3": "skipped"}, "", 0),
        ({"n1": "succeeded", "n2": "failed", "n3": "not_started"}, "n2: failed\nn3: not_started\n", 1),
    ],
)
def test_batch_script_waits_and_prints_where_it_failed(
    tmp_path: Path, members: dict[str, str], printed: str, code: int
) -> None:
    with scripted_api() as api:
        api.on("/api/v1/batches", as_json(STARTED, 202))
        api.on("/api/v1/batches/b", as_json(batch("running", n1="running")), as_json(batch("completed", **members)))
        done = run(SCRIPTS[0], api, tmp_path)
    assert (done.stdout, done.returncode) == (printed, code), done.stderr
    assert json.loads(api.asked[0][3]) == {"backend": "echo", "selector": "zone=a", "reason": "ticket 7"}


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1)])
def test_asyncio_script_upgrades_every_healthy_node(tmp_path: Path, state: str, code: int) -> None:
    with scripted_api() as api:
        api.on("/api/v1/nodes", as_json(page(node("a"), next_cursor="c")), as_json(page(node("b"))))
        api.on("/api/v1/operations", as_json(ACCEPTED, 202))
        api.on("/api/v1/operations/op", as_json(operation(state, 1, message=f"it {state}")))
        done = run(SCRIPTS[1], api, tmp_path)
    assert sorted(done.stdout.splitlines()) == [f"a: it {state}", f"b: it {state}"], done.stderr
    assert done.returncode == code
    sent = [json.loads(body) for verb, _, _, body in api.asked if verb == "POST"]
    assert sorted(each["node"] for each in sent) == ["a", "b"]
    assert all((each["kind"], each["backend"]) == ("upgrade", "echo") for each in sent)
