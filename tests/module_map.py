"""The module map: the folder table of CONTRIBUTING.md beside the imports that the code really has.

`python -m tests.module_map` prints it; `tests/test_architecture.py` prints it when table and code differ.
"""

import ast
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = sorted(link.name for link in (ROOT / "src" / "nodesmith").iterdir() if link.is_symlink())
_ROW = re.compile(r"^\| `(\w+)/` \| (.+?) \| (.+?) \|$", re.MULTILINE)
_ALL_BELOW = "all below"


@dataclass(frozen=True)
class Folder:
    """One row of the table, and what the code has in that folder."""

    name: str
    contents: str
    may_import: frozenset[str]
    imports: frozenset[str]
    subfolders: tuple[str, ...]

    def __str__(self) -> str:
        inside = f" ({', '.join(self.subfolders)})" if self.subfolders else ""
        return f"{self.name + '/':12}{self.contents}{inside}\n{'':12}-> {', '.join(sorted(self.imports)) or 'nothing'}"


def table() -> dict[str, tuple[str, str]]:
    """Return folder -> contents and what it may import, in the order of the table."""
    rows = _ROW.findall((ROOT / "CONTRIBUTING.md").read_text())
    return {name: (contents, imports) for name, contents, imports in rows}


@cache
def module_map() -> Mapping[str, Folder]:
    rows = table()
    names = [name for name in rows if name in PRODUCT]
    return {
        name: Folder(
            name,
            rows[name][0].replace("`", ""),
            _allowed(rows[name][1], below=names[position + 1 :]),
            imports_of(name),
            _subfolders(name),
        )
        for position, name in enumerate(names)
    }


def imports_of(folder: str) -> frozenset[str]:
    """Return the other folders of the product that the modules of a folder import."""
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found |= {name.split(".")[1] for name in names if name.startswith("nodesmith.")}
    return frozenset(found - {folder})


def _allowed(written: str, *, below: list[str]) -> frozenset[str]:
    """Read the last column: folders up to a colon or semicolon, `all below` or `nothing`."""
    named = re.split("[:;]", written)[0]
    return frozenset(below if named == _ALL_BELOW else re.findall(r"\w+", named)) & set(PRODUCT)


def _subfolders(folder: str) -> tuple[str, ...]:
    inside = (path.parent for path in (ROOT / folder).glob("*/__init__.py"))
    return tuple(sorted(f"{each.name}/" for each in inside))


def printed() -> str:
    return "\n".join(str(folder) for folder in module_map().values())


if __name__ == "__main__":
    sys.stdout.write(printed() + "\n")
