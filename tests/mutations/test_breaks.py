"""Every deliberate break matches the current code; `make breaks` verifies that its tests fail with it."""

import importlib
import inspect
import re

import pytest

from tests.mutations.__main__ import is_cheap
from tests.mutations.all_breaks import BREAKS
from tests.mutations.arming import Break, Unresolvable, arm, check
from tests.rule_tables import located, proofs


@pytest.mark.parametrize("each", BREAKS, ids=lambda each: each.what)
def test_break_matches_the_code(each: Break) -> None:
    """After moving a target, update the break and check that its tests fail again."""
    check(each)
    assert each.tests
    for test in each.tests:
        located(test)


@pytest.mark.parametrize("each", BREAKS, ids=lambda each: each.what)
def test_break_of_a_numbered_rule_fails_a_test_that_names_the_rule(each: Break) -> None:
    numbered = [rule for rule in each.rules if rule[1:].isdigit()]
    tests = {located(test) for test in each.tests}
    assert not [rule for rule in numbered if not tests & set(proofs().get(rule, ()))]


@pytest.mark.parametrize("each", BREAKS, ids=lambda each: each.what)
def test_break_reads_only_names_that_its_module_has(each: Break) -> None:
    """With a missing name the tests would fail because of the break's own error."""
    read = re.findall(r"\bnames(?:_of\(original\))?\.(\w+)", inspect.getsource(each.by))
    module = importlib.import_module(each.module)
    assert not [name for name in read if not hasattr(module, name)]


def test_no_two_breaks_have_the_same_name() -> None:
    assert len({each.what for each in BREAKS}) == len(BREAKS)


def test_most_breaks_are_cheap_enough_for_the_sample() -> None:
    assert sum(map(is_cheap, BREAKS)) > len(BREAKS) * 0.7


def _anything(target: str) -> Break:
    return Break(("none",), "a break for this test", target, lambda original, self, node: None, tests=())


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("services.nowhere:f", "No module named"),
        (
            "nodesmith.services.operations.repair:Repair.nowhere",
            "there is no nodesmith.services.operations.repair:Repair.nowhere",
        ),
        ("nodesmith.services.operations.repair:Nobody.once", "no 'Nobody'"),
        ("nodesmith.services.operations.repair:Repair._has_ended", "has no parameter 'node'"),
    ],
)
def test_break_without_a_target_is_an_error(target: str, why: str) -> None:
    with pytest.raises(Unresolvable, match=why):
        check(_anything(target))


def test_break_that_cannot_take_every_argument_is_an_error() -> None:
    """Its tests would fail because of a mismatched call, and prove nothing."""
    short = Break(
        ("none",),
        "short",
        "nodesmith.services.operations.repair:Repair._has_ended",
        lambda original, self: None,
        tests=(),
    )
    with pytest.raises(Unresolvable, match="does not take the parameter 'row'"):
        check(short)


def test_ambiguous_test_name_is_resolved_by_its_file() -> None:
    name = "test_cancel_reaches_node_after_worker_crash_during_dispatch"
    with pytest.raises(LookupError, match="2 tests have the name"):
        located(name)
    assert located(f"test_kill.py::{name}") == f"tests/e2e/test_kill.py::{name}"


def test_break_that_changes_nothing_is_an_error() -> None:
    same = Break(("none",), "nothing", "nodesmith.domain.kinds:RULES", lambda rows: rows, tests=())
    with pytest.raises(Unresolvable, match="changes nothing"):
        check(same)


def _greet(name: str) -> str:
    return f"hello {name}"


async def _greet_later(name: str) -> str:
    return f"hello {name}"


class _Greeter:
    word = "hello"

    @property
    def loud(self) -> str:
        return self.word.upper()

    @staticmethod
    def plain(name: str) -> str:
        return f"hello {name}"


async def test_functions_methods_properties_and_constants_are_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr("tests.mutations.arming.NOTES", tmp_path_factory.mktemp("notes"))
    namespace = {"greet": _greet, "greet_later": _greet_later, "Greeter": type("Greeter", (), dict(vars(_Greeter)))}

    def replaced(name: str, by: object) -> None:
        assert callable(by)
        arm(namespace, Break(("none",), name, f"any.module:{name}", by, tests=()))

    replaced("greet", lambda original, name: original(name[::-1]))
    replaced("greet_later", lambda original, name: original(name[::-1]))
    replaced("Greeter.loud", lambda original, self: original(self) + "!")
    replaced("Greeter.plain", lambda original, name: "bye")
    replaced("Greeter.word", lambda word: "good day")
    greeter = namespace["Greeter"]()  # type: ignore[operator]
    assert (namespace["greet"]("abc"), await namespace["greet_later"]("abc")) == ("hello cba",) * 2  # type: ignore[operator]
    assert (greeter.loud, greeter.plain("abc"), greeter.word) == ("GOOD DAY!", "bye", "good day")
