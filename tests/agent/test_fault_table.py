"""docs/sources.md names every fault, and only tests that there are."""

import re
from pathlib import Path

from domain.operation import Reason
from tests.agent.test_faults import FAULTS, SOURCES

HERE = Path(__file__).parent
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (HERE.parents[1] / "docs/sources.md").read_text().splitlines()
    if line.startswith("| ") and "| `test_" in line
]


def test_every_line_names_a_test_and_a_reason_that_exist():
    assert len(ROWS) > 20
    for source, fault, reason, _, test in ROWS:
        file, _, name = test.strip("`").rpartition(": ")
        content = (HERE / (file or "test_faults.py")).read_text()
        assert re.search(rf"^(async )?def {name}\(", content, re.MULTILINE), (source, fault, name)
        named = re.findall(r"`(\w+)`", reason)
        assert all(word in set(Reason) for word in named), reason


def test_every_fault_of_the_tests_is_in_the_table_with_its_reason():
    for fault in FAULTS:
        (row,) = [row for row in ROWS if row[1] == fault.name]
        assert row[0] == ", ".join(SOURCES), fault.name
        assert f"`{fault.reason}`" in row[2], fault.name
        assert (row[3] == "nothing") == (fault.kept == 0), fault.name
