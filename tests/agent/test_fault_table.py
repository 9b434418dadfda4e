"""docs/reference/sources.md lists every fault, and only existing tests."""

import re
from pathlib import Path

from nodesmith.domain.operation import Reason
from tests.agent.test_faults import FAULTS, SOURCES

HERE = Path(__file__).parent
LINES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (HERE.parents[1] / "docs/reference/sources.md").read_text().splitlines()
    if line.startswith("| ") and "| `test_" in line
]
ROWS = [line for line in LINES if len(line) > 2]
AT_ADMISSION = [line for line in LINES if len(line) == 2]


def test_every_line_names_a_test_and_a_reason_that_exist():
    assert len(ROWS) > 20
    for source, fault, reason, _, test in ROWS:
        file, _, name = test.strip("`").rpartition(": ")
        assert is_test(HERE / (file or "test_faults.py"), name), (source, fault, name)
        named = re.findall(r"`(\w+)`", reason)
        assert all(word in set(Reason) for word in named), reason


def test_every_line_about_admission_names_a_test_that_exists():
    assert len(AT_ADMISSION) > 5
    for _, test in AT_ADMISSION:
        file, _, name = test.strip("`").rpartition(": ")
        assert is_test(HERE.parent / "services" / file, name), name


def is_test(file: Path, name: str) -> bool:
    return re.search(rf"^(async )?def {name}\(", file.read_text(), re.MULTILINE) is not None


def test_every_fault_of_the_tests_is_in_the_table_with_its_reason():
    for fault in FAULTS:
        (row,) = [row for row in ROWS if row[1] == fault.name]
        assert row[0] == ", ".join(SOURCES), fault.name
        assert f"`{fault.reason}`" in row[2], fault.name
        assert (row[3] == "nothing") == (fault.kept == 0), fault.name
