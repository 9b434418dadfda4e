"""The table of kinds: one row per kind, and no other place outside the handlers that asks which kind it is."""

import ast
from pathlib import Path

import pytest

from nodesmith.domain.kinds import RULES, Kind, KindRules, lock_name

ROOT = Path(__file__).parents[2]
HANDLERS = {"activities/localai.py", "activities/send_command.py", "bus/commands.py"}
"""how a LocalAI worker is asked differs by kind; the folder agent/ executes the kinds"""


def test_every_kind_has_one_row() -> None:
    assert list(RULES) == list(Kind)


def true_for(kind: Kind) -> set[str]:
    names = (name for name in KindRules.__dataclass_fields__ if name not in ("noun", "subject"))
    return {name for name in names if getattr(kind.rules, name)}


@pytest.mark.parametrize(
    ("kind", "rules"),
    [
        (Kind.INSTALL, "needs_artifact cancellable_on_node localai requestable"),
        (
            Kind.UPGRADE,
            "needs_artifact needs_installed changes_installed cancellable_on_node stops_on_failures localai "
            "requestable",
        ),
        (Kind.ROLLBACK, "needs_installed changes_installed cancellable_on_node stops_on_failures requestable"),
        (Kind.REMOVE, "changes_installed removes waits_without_limit stops_on_failures localai requestable"),
        (Kind.LOAD, "locks_replica scheduled cancellable_on_node"),
        (Kind.UNLOAD, "locks_replica scheduled removes"),
        (Kind.UNKNOWN, "cancellable_on_node"),
    ],
)
def test_rules_of_each_kind(kind: Kind, rules: str) -> None:
    assert true_for(kind) == set(rules.split())


def test_words_of_each_kind() -> None:
    assert {kind: (rules.noun, rules.subject) for kind, rules in RULES.items()} == {
        Kind.INSTALL: ("installation", "install"),
        Kind.UPGRADE: ("upgrade", "upgrade"),
        Kind.ROLLBACK: ("rollback", "upgrade"),
        Kind.REMOVE: ("removal", "delete"),
        Kind.LOAD: ("load", "install"),
        Kind.UNLOAD: ("unload", "delete"),
        Kind.UNKNOWN: ("change", "install"),
    }


def decides_by_kind(path: Path) -> bool:
    """Whether a module compares with a kind, matches one, or has a table or a set of its own."""
    for node in ast.walk(ast.parse(path.read_text())):
        deciding = isinstance(node, ast.Compare | ast.match_case | ast.Dict | ast.Set | ast.Tuple)
        if deciding and any(
            isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "Kind"
            for part in ([node.pattern] if isinstance(node, ast.match_case) else [node])
            for each in ast.walk(part)
        ):
            return True
    return False


def test_only_the_table_and_the_handlers_distinguish_kinds() -> None:
    folders = ("activities", "api", "bus", "cli", "contracts", "control", "services", "store", "workers", "workflows")
    modules = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    deciding = {path.relative_to(ROOT).as_posix() for path in modules if decides_by_kind(path)}
    assert deciding == HANDLERS


def test_a_load_locks_its_replica_and_an_install_its_backend() -> None:
    assert lock_name(Kind.LOAD, "echo", "llama", 1) == lock_name(Kind.UNLOAD, "", "llama", 1) == "model:llama#1"
    assert lock_name(Kind.INSTALL, "echo", "llama", 1) == "echo"
