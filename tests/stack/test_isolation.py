"""The embedded Temporal is isolated according to the setting, where the machine permits it."""

import pytest

from nodesmith.stack.errors import StackError
from nodesmith.stack.servers import isolation, namespace
from nodesmith.stack.servers.isolation import ForwardedPort, IsolationOrder


@pytest.mark.parametrize(
    "environment", [{}, {isolation.SETTING: "on"}, {isolation.SETTING: "ON"}, {isolation.SETTING: ""}]
)
@pytest.mark.parametrize("is_permitted", [True, False])
def test_isolated_unless_the_machine_does_not_permit_it(
    environment: dict[str, str], is_permitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespace, "is_permitted", lambda: is_permitted)
    notes: list[str] = []
    assert isolation.is_enabled(environment, notes.append) is is_permitted
    assert notes == ([] if is_permitted else [isolation.NOT_PERMITTED])
    assert isolation.NOT_PERMITTED.startswith("WARNING: this machine permits no network namespace")


def test_disabled_isolation_prints_a_warning() -> None:
    notes: list[str] = []
    assert not isolation.is_enabled({isolation.SETTING: "off"}, notes.append)
    assert notes == [isolation.SWITCHED_OFF]


def test_another_value_is_refused() -> None:
    with pytest.raises(StackError, match="NODESMITH_TEMPORAL_ISOLATION is perhaps; allowed are on and off"):
        isolation.is_enabled({isolation.SETTING: "perhaps"}, print)


def test_order_survives_the_command_line() -> None:
    order = IsolationOrder([ForwardedPort(1, 2), ForwardedPort(3, 4)], "certificate", "key", "authority")
    assert IsolationOrder.from_json(order.to_json()) == order
