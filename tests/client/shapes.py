"""Answers of a scripted API: an operation, its events, a batch and a node."""

import json
from datetime import UTC, datetime
from typing import Any

AT = datetime(2026, 11, 16, 3, 0, tzinfo=UTC).isoformat()
EVENT = {"op_id": "op", "node_id": "n1", "node_name": "agent-1", "backend": "echo", "kind": "install", "at": AT}
KEEP_ALIVE = ": still here\n\n"

PROBLEM = {
    "title": "Conflict",
    "status": 409,
    "detail": "Operation 7 holds echo on node agent-1.",
    "code": "operation_conflict",
    "remedy": "Wait for it, or cancel it.",
    "facts": {"op_id": "7", "attempts": 3},
}
THROTTLED = {**PROBLEM, "title": "Too Many Requests", "status": 429, "code": "too_many_failures"}
AWAY = {**PROBLEM, "title": "Service Unavailable", "status": 503, "detail": "PostgreSQL does not answer."}

ACCEPTED = {"op_id": "op", "node_id": "n1", "node_name": "agent-1", "message": "install of echo accepted"}


def operation(state: str, events: int, **facts: object) -> dict[str, Any]:
    return {
        "op_id": "op",
        "kind": "install",
        "node_id": "n1",
        "node_name": "agent-1",
        "backend": "echo",
        "family": "echo",
        "state": state,
        "created_at": AT,
        "timeline": [{**EVENT, "id": number, "state": state} for number in range(1, events + 1)],
        **facts,
    }


def state_event(number: int, state: str, **facts: object) -> str:
    event = {**EVENT, "id": number, "state": state, "message": state, **facts}
    return f"id: {number}\nevent: operation\ndata: {json.dumps(event)}\n\n"


def tick(percentage: float) -> str:
    gauge = {"op_id": "op", "node_id": "n1", "phase": "downloading", "percentage": percentage}
    return f"event: progress\ndata: {json.dumps(gauge)}\n\n"


def batch(state: str, **members: str) -> dict[str, Any]:
    return {
        "batch_id": "b",
        "kind": "upgrade",
        "backend": "echo",
        "family": "echo",
        "version": "2",
        "state": state,
        "max_parallel": 20,
        "created_at": AT,
        "message": f"{state}: {len(members)} nodes",
        "members": [{"node_id": name, "node_name": name, "state": each} for name, each in members.items()],
    }


def node(name: str, **facts: object) -> dict[str, Any]:
    return {
        "id": f"id-of-{name}",
        "name": name,
        "node_type": "backend",
        "protocol": 2,
        "status": "healthy",
        "created_at": AT,
        "updated_at": AT,
        **facts,
    }


def page(*items: object, **facts: object) -> dict[str, Any]:
    return {"items": list(items), "next_cursor": None, **facts}
