"""`nodesmith audit`: entries of several pages, and the format of a change."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from nodesmith.cli.commands.audit import change
from nodesmith.cli.main import make_app
from nodesmith.contracts.http.access import AuditEntry
from tests.client.shapes import AT, page
from tests.fakes.scripted_api import as_json, scripted_api


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"after": {"role": "viewer"}}, 'role="viewer"'),
        ({"before": {"cap": 1}, "after": {"cap": 4}}, "cap=1 -> cap=4"),
        ({"before": {"cap": 1}}, "cap=1 -> "),
        ({"outcome": "unknown", "before": {"cap": 1}, "after": {"cap": 4}}, "outcome unknown; requested: cap=4"),
        ({"outcome": "unknown"}, "outcome unknown; requested: this"),
    ],
)
def test_change_is_formatted_on_one_line(facts: dict[str, Any], said: str) -> None:
    known = {"id": 1, "at": datetime.now(UTC), "actor": "ada", "action": "nodes.drain", "target": "n1"}
    assert change(AuditEntry.model_validate({**known, **facts})) == said


def test_entries_are_read_page_by_page_until_there_are_enough() -> None:
    first, second, third = (
        {"id": number, "at": AT, "actor": "ada", "action": "hold.set", "target": "hold"} for number in (9, 8, 7)
    )
    with scripted_api() as api:
        api.on("/api/v1/audit", as_json(page(first, second, next_cursor="8")), as_json(page(third, next_cursor="7")))
        options = ["--actor", "ada", "--target", "n1", "--action", "hold.set", "--since", "1d", "--limit", "3"]
        done = CliRunner().invoke(make_app(), ["audit", *options, "--json", "--url", api.url, "--token", "t"])
        asked = [parse_qs(urlsplit(path).query) for _, path, _, _ in api.asked]
    assert [each["id"] for each in json.loads(done.stdout)] == [9, 8, 7]
    assert [query.get("cursor") for query in asked] == [None, ["8"]]
    filters = {"actor": ["ada"], "target": ["n1"], "action": ["hold.set"], "limit": ["3"]}
    assert all(filters.items() <= query.items() for query in asked)
    since = datetime.fromisoformat(asked[0]["since"][0])
    assert timedelta(days=1) <= datetime.now(UTC) - since < timedelta(days=1, minutes=5)
