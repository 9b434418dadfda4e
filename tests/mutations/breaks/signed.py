"""Breaks in the admission and renewal of orders, signed requests, repeated heartbeats, old keys and roles."""

from typing import Any

from tests.mutations.arming import Break, names_of, rules
from tests.mutations.breaks.dispatch import without


async def _end_without_audit(original: Any, self: Any) -> None:
    names = names_of(original)
    self._record.move(names.Event.FAIL, reason=names.Reason.NOT_ADMITTED)


async def _end_as_refused(original: Any, self: Any) -> None:
    names = names_of(original)
    await self._record.report_not_admitted()
    self._record.move(names.Event.FAIL, reason=names.Reason.REFUSED_BY_NODE)


async def _write_no_audit_row(_: Any, self: Any, request: Any) -> None:
    """The run ends, and nobody learns of it."""


async def _renew_nothing(_: Any, self: Any) -> int:
    return 0


async def _renew_whatever_is_there(original: Any, self: Any, old: Any, workflow_id: str, reason: str, now: int) -> bool:
    """Without a look at the signature: the API signs what somebody wrote into PostgreSQL."""
    names = names_of(original)
    order = names.Order.model_validate_json(old.payload).model_copy(update={"exp": now + 86_400_000})
    return bool(await self.table.renew(old, order, self.signer.sign(order)))


async def _give_a_new_order(original: Any, self: Any, old: Any, workflow_id: str, reason: str, now: int) -> bool:
    """A renewal that makes an old decision the newest one."""
    order = self.signer.read(old).model_copy(update={"iat": now, "exp": now + 86_400_000})
    return bool(await self.table.renew(old, order, self.signer.sign(order)))


async def _wake_nobody(_: Any, self: Any, workflow_id: str, node_id: str) -> None:
    """The run waits on."""


async def _read_unsigned(original: Any, self: Any, question: Any, action: str) -> Any:
    return question


async def _stop_unsigned(_: Any, self: Any, command: Any) -> None:
    await self._models.stop_backend(command)


async def _accept_any_signed_request(original: Any, self: Any, signed: Any, action: str) -> str:
    """Whoever it is for, and however often it comes."""
    names = names_of(original)
    if signed is None:
        raise names.OrderRefused("The request is not signed.")
    await self._verify(signed, names.REQUEST)
    return str(names.Request.model_validate_json(signed.payload).question)


async def _take_nothing_back(_: Any, self: Any, node_id: str, user: str, *, now: Any) -> bool:
    return False


async def _tell_no_server(_: Any, self: Any) -> None:
    """NATS does not learn which credentials are revoked."""


async def _admit_every_role(original: Any, request: Any, who: Any, needed: Any) -> str:
    return str(await original(request, who, names_of(original).Role.VIEWER))


async def _admit_admins_only(original: Any, request: Any, who: Any, needed: Any) -> str:
    return str(await original(request, who, names_of(original).Role.ADMIN))


def _operators_are_admins(original: Any, self: Any, needed: Any) -> bool:
    return self != "viewer" or bool(original(self, needed))


async def _never_look(_: Any, self: Any) -> None:
    """The node keeps the keys that it has."""


async def _ask_at_every_nudge(original: Any, self: Any) -> None:
    while True:
        await self._wait_until_notified_or_due()
        self._told.clear()
        await self._refresh()


async def _compare_nothing(_: Any, self: Any) -> None:
    """Whatever root key this replica has."""


def _record_the_last_to_start(_: Any, self: Any, compared: Any) -> bool:
    return True


SIGNED = (
    Break(
        rules("orders"),
        "a run without an order ends without an audit entry",
        "nodesmith.workflows.operation_waits:OperationWaits.wait_for_order",
        _end_without_audit,
        tests=("test_run_that_no_api_admitted_fails_and_is_reported",),
    ),
    Break(
        rules("orders"),
        "a run without an order does not say that it was not admitted",
        "nodesmith.workflows.operation_waits:OperationWaits.wait_for_order",
        _end_as_refused,
        tests=("test_run_that_no_api_admitted_fails_and_is_reported",),
    ),
    Break(
        rules("orders"),
        "a run without an order gets a permit",
        "nodesmith.store.operations.permits:_PERMIT",
        without("EXISTS (SELECT FROM orders WHERE orders.op_id = :op_id)"),
        tests=("test_permit_needs_an_admitted_operation",),
    ),
    Break(
        rules("orders"),
        "a run without an order leaves no row in the audit trail",
        "nodesmith.activities.records:RecordActivities.report_not_admitted",
        _write_no_audit_row,
        tests=("test_run_that_no_api_admitted_leaves_a_row_in_the_audit_trail",),
    ),
    Break(
        rules("orders"),
        "orders are not renewed",
        "nodesmith.services.operations.orders:OrderRenewals.once",
        _renew_nothing,
        tests=("test_order_of_an_open_operation_is_renewed_and_only_its_end_changes",),
    ),
    Break(
        rules("orders"),
        "an unsigned order is renewed",
        "nodesmith.services.operations.orders:OrderRenewals._renew",
        _renew_whatever_is_there,
        tests=("test_order_that_no_key_of_ours_signed_is_neither_renewed_nor_retried",),
    ),
    Break(
        rules("orders"),
        "a renewed order is newer than it was",
        "nodesmith.services.operations.orders:OrderRenewals._renew",
        _give_a_new_order,
        tests=("test_order_of_an_open_operation_is_renewed_and_only_its_end_changes",),
    ),
    Break(
        rules("orders"),
        "a run that waits for its order is not woken by the renewal",
        "nodesmith.services.operations.orders:OrderRenewals._wake",
        _wake_nobody,
        tests=("test_order_of_an_open_operation_is_renewed_and_only_its_end_changes",),
    ),
    Break(
        rules("orders"),
        "a running API renews neither orders nor keys",
        "nodesmith.api.order_renewal:OrderRenewal.once",
        _renew_nothing,
        tests=(
            "test_running_replica_renews_the_orders_of_open_operations",
            "test_running_replica_replaces_a_key_that_ends_soon",
        ),
        waits=True,
    ),
    Break(
        rules("orders"),
        "a node unloads, stops and deletes models without a signature",
        "nodesmith.agent.link.handlers:SignedModelHandlers._verify",
        _read_unsigned,
        tests=("test_unload_stop_and_delete_that_are_not_signed_change_nothing",),
    ),
    Break(
        rules("orders"),
        "a node stops backends without a signature",
        "nodesmith.agent.link.handlers:AgentHandlers.stop_backend",
        _stop_unsigned,
        tests=("test_stop_accepts_a_backend_a_model_a_key_or_nothing_for_all",),
        waits=True,
    ),
    Break(
        rules("orders"),
        "a signed request counts twice, on any node and for anything",
        "nodesmith.agent.operations.order_checks:OrderVerifier.verify_request",
        _accept_any_signed_request,
        tests=("test_request_is_signed_for_one_node_and_one_action_and_counts_once",),
    ),
    Break(
        rules("nats"),
        "a replayed heartbeat counts",
        "nodesmith.store.nodes.nodes:_HEARTBEATS",
        without("(beat.seq = 0 OR beat.seq > known.beat_seq)"),
        tests=("test_repeated_heartbeat_is_no_sign_of_life",),
    ),
    Break(
        rules("nats"),
        "the old key of a node is kept beside its new one",
        "nodesmith.store.nodes.nats_credentials:NatsCredentials.revoke_others",
        _take_nothing_back,
        tests=("test_new_nats_key_revokes_the_credential_of_the_old_one",),
    ),
    Break(
        rules("nats"),
        "the NATS server does not get the revoked keys",
        "nodesmith.services.nodes.revocation:Revocation.enforce",
        _tell_no_server,
        tests=("test_new_key_revokes_the_old_one",),
        waits=True,
    ),
    Break(
        rules("roles"),
        "every role may change everything",
        "nodesmith.api.auth:_admit",
        _admit_every_role,
        tests=("test_each_role_is_admitted_exactly_where_the_table_says",),
    ),
    Break(
        rules("roles"),
        "an operator may change nothing",
        "nodesmith.api.auth:_admit",
        _admit_admins_only,
        tests=("test_each_role_is_admitted_exactly_where_the_table_says",),
    ),
    Break(
        rules("roles"),
        "an operator may do what an admin may",
        "nodesmith.domain.access:Role.includes",
        _operators_are_admins,
        tests=("test_each_role_is_admitted_exactly_where_the_table_says",),
    ),
    Break(
        rules("roles"),
        "a route that declares nothing is open to viewers",
        "nodesmith.api.auth:is_declared",
        lambda original, dependant, *, reads: True,
        tests=("test_a_route_that_declares_nothing_is_for_admins",),
    ),
    Break(
        rules("orders"),
        "a node that runs does not look for newer keys",
        "nodesmith.agent.link.trust_watch:TrustWatch._refresh",
        _never_look,
        tests=("test_notified_node_refuses_a_revoked_key",),
        waits=True,
    ),
    Break(
        rules("orders"),
        "every forged nudge makes a node ask",
        "nodesmith.agent.link.trust_watch:TrustWatch.run",
        _ask_at_every_nudge,
        tests=("test_forged_notifications_cost_one_request",),
    ),
    Break(
        rules("orders"),
        "connected nodes are not notified of a new trust list",
        "nodesmith.services.nodes.trust_lists:TrustListNotifier.once",
        _renew_nothing,
        tests=("test_rotation_notifies_running_nodes_at_once",),
        waits=True,
    ),
    Break(
        rules("orders"),
        "the trust list version of a node is not stored",
        "nodesmith.store.nodes.nodes:_HEARTBEATS",
        without("THEN heard.trust_version", "THEN nodes.trust_version"),
        tests=("test_heartbeat_says_which_trust_list_the_node_has",),
    ),
    Break(
        rules("orders"),
        "an API starts with any root key",
        "nodesmith.services.access.trust_roots:RootGuard.check",
        _compare_nothing,
        tests=(
            "test_foreign_root_is_refused_with_a_remedy",
            "test_process_with_the_root_key_of_another_installation_refuses_to_start",
        ),
        waits=True,
    ),
    Break(
        rules("orders"),
        "the last API to start decides which root key counts",
        "nodesmith.services.access.trust_roots:RootGuard._replaces",
        _record_the_last_to_start,
        tests=(
            "test_replica_with_older_keys_starts_with_a_warning",
            "test_keys_that_two_replicas_replaced_separately_are_refused",
            "test_one_of_two_concurrent_first_roots_is_refused",
        ),
    ),
)
