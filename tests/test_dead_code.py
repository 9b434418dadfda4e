"""The product has no dead code: no function or method that is named only where it is defined."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAYERS = ("domain", "gallery", "store", "bus", "services", "activities", "workflows", "control")
PRODUCT = (*LAYERS, "contracts", "runtime", "workers", "api", "agent", "stack", "client", "cli", "gateway")
CALLED_BY_NAME = {"_missing_", "do_GET", "do_POST", "log_message", "type_annotation_map", "upgrade", "downgrade"}
"""hooks of enum, http.server, SQLAlchemy and Alembic"""


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def defined_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and place of each function and method; a function registered by a decorator has a caller."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_registered(node):
            yield node.name, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def _is_registered(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    plain = {"property", "staticmethod", "classmethod", "contextmanager", "asynccontextmanager", "cache", "override"}
    return any(ast.unparse(each) not in plain for each in node.decorator_list) or node.name.startswith("__")


def test_every_function_is_named_where_it_is_not_defined() -> None:
    used = Counter(word for path in sources(*PRODUCT) for word in re.findall(r"\b[A-Za-z_]\w*\b", path.read_text()))
    defined = Counter(name for path in sources(*PRODUCT) for name, _ in defined_in(path))
    dead = [
        place
        for path in sources(*LAYERS)
        for name, place in defined_in(path)
        if used[name] <= defined[name] and name not in CALLED_BY_NAME
    ]
    assert not dead
