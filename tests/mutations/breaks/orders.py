"""Breaks in signed orders: each check of the node, the order in the permit, and the limits of a run's decisions."""

from typing import Any

from tests.mutations.arming import Break, rules


def _believe(_: Any, self: Any, purpose: str, payload: str, signature: str) -> None:
    """Every signature fits."""


def _check_nothing(_: Any, self: Any, order: Any) -> None:
    """Whatever the order says."""


async def _replace_anything(_: Any, self: Any, order: Any) -> None:
    """Whatever is installed."""


def _never_revoke(original: Any, chain: Any) -> Any:
    return {kid: (key, False) for kid, (key, _) in original(chain).items()}


def _meet_anybody(_: Any, self: Any) -> None:
    """The first answer is believed, whoever gives it."""


def _follow_anybody(original: Any, pinned: Any, chain: Any) -> Any:
    return chain.newest


def _judge_by_own_clock(original: Any, self: Any) -> int:
    self._clock_offset_ms, self._newest_iat = None, 0
    return int(original(self))


async def _accept_without_an_order(original: Any, self: Any, first: Any, load: Any = None) -> None:
    order = self._order(first.request, since=0, load=load)
    await self.operations.insert_admitted(first, order, self.signer.sign(order))


ORDERS: tuple[Break, ...] = (
    Break(
        rules("orders"),
        "a node believes every signature",
        "nodesmith.runtime.signing:VerifyKey.verify",
        _believe,
        tests=("test_order_that_was_changed_is_refused", "test_changed_payload_is_refused"),
    ),
    Break(
        rules("orders"),
        "a node carries out orders for others, and expired ones",
        "nodesmith.agent.operations.order_checks:OrderVerifier._check_addressee",
        _check_nothing,
        tests=("test_order_for_another_node_is_refused", "test_expired_order_waits_for_its_renewal"),
    ),
    Break(
        rules("orders"),
        "a node carries out an order that is older than one that began",
        "nodesmith.agent.operations.order_checks:OrderVerifier._check_newer",
        _check_nothing,
        tests=("test_order_that_is_not_newer_than_the_newest_begun_is_refused",),
    ),
    Break(
        rules("orders"),
        "a node replaces what the order was not given for",
        "nodesmith.agent.operations.order_checks:OrderVerifier._check_current",
        _replace_anything,
        tests=("test_order_for_another_installed_version_is_refused",),
    ),
    Break(
        rules("orders"),
        "a node judges orders by its own clock",
        "nodesmith.agent.link.pinned_trust:PinnedTrust.now",
        _judge_by_own_clock,
        tests=("test_order_is_judged_by_the_clock_of_the_control_plane",),
    ),
    Break(
        rules("orders"),
        "a revoked key is still believed by the API",
        "nodesmith.runtime.keyring:_known",
        _never_revoke,
        tests=("test_revoked_key_is_refused_and_its_orders_are_not_read",),
    ),
    Break(
        rules("orders"),
        "a node accepts the first answer without verification",
        "nodesmith.agent.link.pinned_trust:PinnedTrust._refuse_unsafe_contact",
        _meet_anybody,
        tests=("test_first_contact_is_safe_or_has_a_fingerprint",),
    ),
    Break(
        rules("orders"),
        "a node takes any newer trust list",
        "nodesmith.runtime.trust_lists:follow",
        _follow_anybody,
        tests=("test_nodes_follow_a_new_root_but_no_foreign_one",),
    ),
    Break(
        rules("orders"),
        "the API accepts an operation whose order it could not write",
        "nodesmith.services.operations.orders:Orders.admit",
        _accept_without_an_order,
        tests=("test_order_that_comes_after_the_end_of_its_operation_is_refused",),
    ),
)
