"""Which page is made by which function."""

from collections.abc import Callable
from pathlib import Path

from nodesmith.contracts import diagram
from tests import rules, rules_operations
from tests.reference import command_line, http_api, settings

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"

PAGES: dict[Path, Callable[[], str]] = {
    REFERENCE / "cli.md": command_line.page,
    REFERENCE / "http.md": http_api.page,
    REFERENCE / "settings.md": settings.page,
    REFERENCE / "states.md": diagram.page,
    REFERENCE / "rules-nodes.md": rules.page,
    REFERENCE / "rules-operations.md": rules_operations.page,
}
