"""Maps numbered rules to the tests that prove them: a test proves the rules that its docstring names."""

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
_NUMBER = re.compile(r"\b([RSHG]\d+)[a-z]?\b")


@cache
def proofs() -> Mapping[str, list[str]]:
    """Return rule number -> tests that name it, as file::test."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for place, test in _every_test():
        for number in sorted(set(_NUMBER.findall(ast.get_docstring(test) or ""))):
            found[number].append(place)
    return dict(found)


def located(name: str) -> str:
    """Return the test with that name as file::test; raise unless there is exactly one.

    If two files have a test of that name, `test_file.py::test_name` distinguishes them.
    """
    file, _, test = name.rpartition("::")
    found = [place for place in _places().get(test, []) if place.rpartition("::")[0].endswith(file)]
    if len(found) != 1:
        raise LookupError(f"{len(found)} tests have the name {name}: {', '.join(found)}")
    return found[0]


def in_order(tests: Collection[str]) -> list[str]:
    """Sort tests by file and position: pytest runs them in the order of its arguments."""
    return [place for place, _ in _every_test() if place in tests]


@cache
def _places() -> Mapping[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for place, test in _every_test():
        found[test.name].append(place)
    return dict(found)


@cache
def _every_test() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    return [
        (f"{path.relative_to(TESTS.parent)}::{test.name}", test)
        for path in sorted(TESTS.rglob("test_*.py"))
        for test in _tests(ast.parse(path.read_text()))
    ]


def _tests(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def page(
    introduction: str,
    rules: Mapping[str, str],
    not_shown: Mapping[str, str] | None = None,
    seen_failing: Mapping[str, str] | None = None,
    *,
    missing: str = "not shown",
) -> str:
    """Format the table in Markdown; rules without a test are listed with the reason."""
    columns = ["rule", "tests", *(["fail when"] if seen_failing else [])]
    rows = [
        [
            rule,
            _proved(number, not_shown or {}, missing),
            *([seen_failing.get(number, "")] if seen_failing else []),
        ]
        for number, rule in rules.items()
    ]
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join([introduction, *(_line(cells) for cells in lines), ""])


def _line(cells: list[str]) -> str:
    bare = set("".join(cells)) == {"-"}
    return f"|{'|'.join(cells)}|" if bare else f"| {' | '.join(cells)} |"


def _proved(number: str, not_shown: Mapping[str, str], missing: str) -> str:
    if number in not_shown:
        return f"*{missing}: {not_shown[number]}*"
    return "<br>".join(f"`{test}`" for test in proofs().get(number, []))
