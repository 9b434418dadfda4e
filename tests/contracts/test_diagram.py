from pathlib import Path

from nodesmith.contracts.diagram import page
from nodesmith.domain.operation import TRANSITIONS

COMMITTED = Path(__file__).parents[2] / "docs" / "reference" / "states.md"


def test_the_page_in_the_documentation_is_the_table_in_the_code() -> None:
    assert COMMITTED.read_text() == page(), "run: python -m nodesmith.contracts.diagram > docs/reference/states.md"


def test_every_edge_is_on_the_page() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page().splitlines() if line.startswith("| ")]
    table = {row[0]: row[1:] for row in rows if len(row) == len(TRANSITIONS) + 1}
    for column, moves in enumerate(TRANSITIONS.values()):
        for event, after in moves.items():
            assert table[event][column] == after
