"""Breaks in the rules for sources: allowed locations, required roles, and recipients of their passwords."""

from typing import Any

from tests.mutations.arming import Break, rules


async def _connect_by_name(original: Any, self: Any, request: Any) -> Any:
    del original
    return await self._direct.handle_async_request(request)


async def _hand_out_to_all(original: Any, self: Any, node: Any, host: Any) -> Any:
    del original, node
    return await self.table.access(host)


async def _every_open_one(original: Any, self: Any, node_id: Any) -> Any:
    await original(self, node_id)
    return [each.op_id for each in await self.open_operations()]


SOURCES = (
    Break(
        rules("sources"),
        "every address may be fetched from",
        "nodesmith.domain.source_policy:SourcePolicy.allows_address",
        lambda original, self, address: True,
        tests=(
            "test_addresses_that_are_not_public_are_refused",
            "test_a_redirect_of_a_source_leads_to_allowed_networks_only",
        ),
    ),
    Break(
        rules("sources"),
        "every file may be fetched",
        "nodesmith.domain.source_policy:SourcePolicy.check_file",
        lambda original, self, path: None,
        tests=("test_a_file_source_does_not_leave_its_folder_by_a_link",),
    ),
    Break(
        rules("sources"),
        "a source is connected to by its name",
        "nodesmith.gallery.source_http:SourceTransport.handle_async_request",
        _connect_by_name,
        tests=("test_a_name_of_an_address_that_is_not_allowed_is_refused",),
    ),
    Break(
        rules("sources"),
        "every operator may name a uri",
        "nodesmith.api.auth:require_uri_right",
        lambda original, request, uri: None,
        tests=("test_an_install_by_uri_needs_the_role_that_the_policy_names",),
        limit_s=90,
    ),
    Break(
        rules("sources"),
        "every node gets every password",
        "nodesmith.services.access.source_secrets:SourceSecrets.hand_out",
        _hand_out_to_all,
        tests=("test_node_without_an_operation_for_the_host_gets_no_settings",),
        limit_s=90,
    ),
    Break(
        rules("sources"),
        "a password is handed out for an operation that was not sent",
        "nodesmith.store.operations.operations:OperationTable.dispatched_to",
        _every_open_one,
        tests=("test_node_without_an_operation_for_the_host_gets_no_settings",),
        limit_s=90,
    ),
)
