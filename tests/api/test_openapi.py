"""The OpenAPI schema is complete, and the API conforms to it for any input."""

import asyncio
import sys
from pathlib import Path

from nodesmith.api.app import create_app
from tests.api.node import on_the_bus
from tests.api.station import ADMIN_TOKEN, Api

HEALTH = {"/healthz", "/readyz"}
ANSWERS_WITH_500 = (
    "/backends/jobs/{job_id}",
    "/api/nodes/{node}/backends/delete",
    "/api/backends/system/delete/{backend}",
    "/api/v1/nodes/{node}/backends/stop",
)
"""because LocalAI's clients expect it, or because nobody works here on what they wait for"""


def test_every_route_declares_what_it_may_answer(api: Api) -> None:
    schema = create_app(api.deps).openapi()
    assert len(schema["paths"]) >= 17
    for path, verbs in schema["paths"].items():
        for verb, operation in verbs.items():
            answers = set(operation["responses"])
            where = f"{verb} {path}"
            assert any(status.startswith(("2", "3")) for status in answers), where
            assert "422" not in answers, where
            if path not in HEALTH:
                assert answers >= {"401", "500", "503"}, where
                assert operation["responses"]["401"]["content"].keys() == {"application/problem+json"}, where


def test_every_post_declares_what_its_key_may_be_refused_with(api: Api) -> None:
    for path, verbs in create_app(api.deps).openapi()["paths"].items():
        if "post" in verbs and not path.startswith("/api/node/"):
            assert verbs["post"]["responses"].keys() >= {"400", "409"}, path


def test_every_change_takes_a_reason(api: Api) -> None:
    for path, verbs in create_app(api.deps).openapi()["paths"].items():
        for verb, operation in verbs.items():
            taken = [parameter["name"] for parameter in operation.get("parameters", [])].count("reason")
            assert taken == (verb != "get" and not path.startswith("/api/node/")), f"{verb} {path}"


async def test_api_keeps_to_its_description(api: Api, tmp_path: Path) -> None:
    """Schemathesis sends what fits the description and what does not; the stream never ends, so it is left out."""
    node = await api.approved_node()
    body = {"kind": "install", "node": node["id"], "backend": "echo"}
    accepted = await api.http.post("/api/v1/operations", json=body)
    known = {"node": node["id"], "op_id": accepted.json()["op_id"], "file": "echo-1.tar.gz"}
    parameters = "\n".join(f'"path.{name}" = "{value}"' for name, value in known.items())
    (tmp_path / "schemathesis.toml").write_text(f"[parameters]\n{parameters}\n")
    async with on_the_bus(node):
        code, said = await schemathesis(api, tmp_path)
    assert code == 0, said


async def schemathesis(api: Api, folder: Path) -> tuple[int | None, str]:
    run = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "schemathesis"),
        "run",
        f"{api.url}/openapi.json",
        f"--header=Authorization: Bearer {ADMIN_TOKEN}",
        "--exclude-path=/api/v1/events",
        *(f"--exclude-path={path}" for path in ANSWERS_WITH_500),
        "--phases=examples,coverage,fuzzing",
        "--max-examples=8",
        "--max-time=12",
        "--seed=1",
        "--request-timeout=10",
        "--no-color",
        "--checks=not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(run.communicate(), 100)
    return run.returncode, said.decode()[-8000:]
