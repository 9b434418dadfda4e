"""Breaks in the gateway, the forwarder and the choice of replicas."""

from typing import Any

from tests.mutations.arming import Break, rules


def _credential_is_forwarded(original: Any, self: Any) -> Any:
    whole = original(self)
    return whole[:-2] + b"x-key: " + self.credential.encode() + b"\r\n\r\n"


def _repeat_all(original: Any, self: Any, request: Any, replica: Any, error: Any, *, sends: int) -> None:
    error.was_sent = False
    original(self, request, replica, error, sends=sends)


async def _any_key(original: Any, self: Any, hashed: Any, known: Any) -> Any:
    key = await original(self, hashed, known)
    key.is_valid = True
    return key


def _ignore_the_client(original: Any, self: Any, exc: Any) -> None:
    self._serving = None
    original(self, exc)


def _counts_of_routes_only(original: Any, self: Any, ids: Any) -> Any:
    routed = {name for model in self.models.values() for name in model.replicas}
    return {name: count if name in routed else 0 for name, count in original(self, ids).items()}


def _draining_is_ignored(original: Any, self: Any, name: str) -> Any:
    route = original(self, name)
    return type(route)(route.key, route.address) if route is not None else None


async def _forget_the_forwarder(original: Any, self: Any) -> None:
    """Adopt nothing."""


GATEWAY = (
    Break(
        rules("gateway"),
        "the API key of a client reaches the backend",
        "nodesmith.gateway.requests:Request.head",
        _credential_is_forwarded,
        tests=("test_body_reaches_the_backend_unchanged_and_the_key_does_not",),
    ),
    Break(
        rules("gateway"),
        "any key opens the gateway",
        "nodesmith.gateway.api_keys:ApiKeys._look_up",
        _any_key,
        tests=("test_whole_requests_with_wrong_keys_are_refused_too",),
    ),
    Break(
        rules("gateway"),
        "a large body is sent twice",
        "nodesmith.gateway.exchange:Exchange._note_failure",
        _repeat_all,
        tests=("test_spooled_request_is_not_repeated",),
    ),
    Break(
        rules("gateway"),
        "the call of a client that has gone goes on",
        "nodesmith.gateway.client_connection:ClientConnection.connection_lost",
        _ignore_the_client,
        tests=("test_disconnected_client_that_waits_leaves_the_queue",),
        waits=True,
    ),
    Break(
        rules("gateway"),
        "a failed replica gets the next call too",
        "nodesmith.gateway.routes:RouteTable.fail",
        lambda original, self, replica: None,
        tests=("test_failed_replica_is_avoided_for_ten_seconds",),
    ),
    Break(
        rules("gateway"),
        "any number of calls waits for a model",
        "nodesmith.gateway.routes:RouteLimits.queue",
        lambda limit: limit * 10,
        tests=("test_default_limits",),
    ),
    Break(
        rules("gateway"),
        "the calls of a drained replica do not count",
        "nodesmith.gateway.routes:RouteTable.counts",
        _counts_of_routes_only,
        tests=("test_call_on_a_drained_replica_counts_until_it_ends",),
    ),
    Break(
        rules("gateway"),
        "the store forgets the calls of a gateway for good",
        "nodesmith.gateway.route_feed:HEARTBEAT_S",
        lambda seconds: 1e9,
        tests=("test_counts_come_back_after_the_store_forgot_a_gateway",),
    ),
    Break(
        rules("gateway"),
        "half a head is waited for without end at the gateway",
        "nodesmith.gateway.client_connection:ClientConnection.expire",
        lambda original, self: None,
        tests=("test_unfinished_head_times_out",),
        waits=True,
    ),
    Break(
        rules("forwarder"),
        "every certificate of the CA is a gateway's",
        "nodesmith.agent.forward.server:GATEWAY_NAME",
        lambda name: "client.nodesmith.internal",
        tests=("test_call_reaches_the_backend_through_mutual_tls",),
        waits=True,
    ),
    Break(
        rules("forwarder"),
        "a drained replica gets new connections",
        "nodesmith.agent.forward.routes:ForwardRoutes.find",
        _draining_is_ignored,
        tests=("test_drained_replica_refuses_new_connections_and_finishes_the_open_ones",),
    ),
    Break(
        rules("forwarder"),
        "a node reports the address of the backend although a forwarder runs",
        "nodesmith.agent.forward.forwarding:Forwarding.address_of",
        lambda original, self, record: record.address,
        tests=("test_replica_is_reached_through_the_forwarder_until_it_is_unloaded",),
    ),
    Break(
        rules("forwarder"),
        "a restarted agent forgets the forwarder that runs",
        "nodesmith.agent.forward.program:ForwarderProgram.adopt",
        _forget_the_forwarder,
        tests=("test_next_agent_adopts_the_forwarder_and_starts_a_killed_one_on_the_same_port",),
    ),
)
