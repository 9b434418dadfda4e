"""From numbered rules to the tests that prove them: a test proves the rules that its docstring names."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
_NUMBER = re.compile(r"\b([RSHG]\d+)[a-z]?\b")


@dataclass(frozen=True)
class Break:
    """One change of the code with which the tests of some rules fail."""

    rules: tuple[str, ...]
    """numbers; or one word for promises without a number, and then `tests` names their proofs"""
    what: str
    """what is broken, in a few words"""
    path: str
    old: str
    new: str
    only: str = ""
    """of the tests of these rules, those that pytest's -k selects: one is enough, the others take long"""
    tests: tuple[str, ...] = ()
    """which tests have to fail, each of them; empty: of each rule one that names it"""
    limit_s: int = 40
    """a test that hangs has failed too"""


def rules(numbers: str) -> tuple[str, ...]:
    return tuple(numbers.split())


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


def page(
    introduction: str,
    rules: Mapping[str, str],
    not_shown: Mapping[str, str] | None = None,
    seen_failing: Mapping[str, str] | None = None,
) -> str:
    """The table in Markdown; what no test shows is listed with its reason."""
    columns = ["rule", "in short", "proved by", *(["seen failing with"] if seen_failing else [])]
    rows = [
        [number, rule, _proved(number, not_shown or {}), *([seen_failing.get(number, "")] if seen_failing else [])]
        for number, rule in rules.items()
    ]
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join([introduction, *(_line(cells) for cells in lines), ""])


def _line(cells: list[str]) -> str:
    bare = set("".join(cells)) == {"-"}
    return f"|{'|'.join(cells)}|" if bare else f"| {' | '.join(cells)} |"


def _proved(number: str, not_shown: Mapping[str, str]) -> str:
    if number in not_shown:
        return f"*not shown: {not_shown[number]}*"
    return "<br>".join(f"`{test}`" for test in proofs().get(number, []))
