"""From numbered rules to the tests that prove them: a test proves the rules that its docstring names."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
_NUMBER = re.compile(r"\b([RSHG]\d+)[a-z]?\b")


@cache
def proofs() -> Mapping[str, list[str]]:
    """Number -> tests that name it, as file::test."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for test in _tests(ast.parse(path.read_text())):
            for number in sorted(set(_NUMBER.findall(ast.get_docstring(test) or ""))):
                found[number].append(f"{path.relative_to(TESTS.parent)}::{test.name}")
    return dict(found)


def _tests(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def page(introduction: str, rules: Mapping[str, str], not_shown: Mapping[str, str] | None = None) -> str:
    """The table in Markdown; what no test shows is listed with its reason."""
    rows = [f"| {number} | {rule} | {_proved(number, not_shown or {})} |" for number, rule in rules.items()]
    return "\n".join([introduction, "| rule | in short | proved by |", "|---|---|---|", *rows, ""])


def _proved(number: str, not_shown: Mapping[str, str]) -> str:
    if number in not_shown:
        return f"*not shown: {not_shown[number]}*"
    return "<br>".join(f"`{test}`" for test in proofs().get(number, []))
