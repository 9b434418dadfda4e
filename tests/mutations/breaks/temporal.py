"""Breaks in the protection of the embedded Temporal server and its Web UI, and in custom server programs."""

import re
import ssl
from typing import Any

from tests.mutations.arming import Break, names_of, rules


def _ask_for_no_certificate(original: Any, order: Any) -> Any:
    context = original(order)
    context.verify_mode = ssl.CERT_NONE
    return context


def _let_all_pages_in(_: Any, self: Any, request: Any) -> None:
    """Whatever Host and Origin say."""


def _let_everybody_do_all(_: Any, caller: Any, needed: Any) -> None:
    """Roles do not count."""


async def _change_without_a_row(original: Any, self: Any, request: Any, who: Any) -> Any:
    body = await names_of(original)._body(request)
    return await self._passed_on(request, body)


def _check_nothing(_: Any) -> None:
    """Any program will do."""


TEMPORAL = (
    Break(
        rules("temporal"),
        "the HTTP API of Temporal answers every host",
        "nodesmith.stack.servers.temporal:DYNAMIC_CONFIG",
        lambda config: {**config, "frontend.httpAllowedHosts": '["*"]'},
        tests=(
            "test_page_of_another_site_starts_no_workflow_on_any_port",
            "test_no_host_that_can_be_sent_is_answered_by_the_http_api",
        ),
        waits=True,
    ),
    Break(
        rules("temporal"),
        "the proxy of Temporal requires no client certificate",
        "nodesmith.stack.servers.isolation:context_of",
        _ask_for_no_certificate,
        tests=(
            "test_isolated_server_refuses_plain_text_and_clients_without_certificate",
            "test_isolated_server_refuses_the_certificate_of_another_home",
        ),
        waits=True,
    ),
    Break(
        rules("temporal"),
        "the Temporal Web UI takes every host name and every page",
        "nodesmith.api.temporal_ui:WebUi._refuse_foreign",
        _let_all_pages_in,
        tests=("test_foreign_host_or_origin_is_refused",),
    ),
    Break(
        rules("temporal"),
        "roles do not count in the Temporal Web UI",
        "nodesmith.api.temporal_ui:require",
        _let_everybody_do_all,
        tests=("test_viewer_reads_and_changes_nothing", "test_operator_starts_no_run_and_touches_no_namespace"),
    ),
    Break(
        rules("temporal"),
        "the server of the Temporal Web UI gets our tokens",
        "nodesmith.api.temporal_ui:_PASSED_ON",
        lambda names: (*names, "authorization"),
        tests=("test_its_server_sees_neither_cookie_nor_token_and_cannot_set_ours",),
    ),
    Break(
        rules("temporal"),
        "a change in the Temporal Web UI leaves no audit row",
        "nodesmith.api.temporal_ui:WebUi._change",
        _change_without_a_row,
        tests=("test_operator_terminates_a_run_and_the_audit_trail_says_so",),
    ),
    Break(
        rules("temporal"),
        "sign-in leads wherever a cookie says",
        "nodesmith.api.temporal_ui:_OWN_PATH",
        lambda _: re.compile(".+"),
        tests=("test_sign_in_leads_to_no_other_host",),
    ),
    Break(
        rules("temporal"),
        "a server program of the user's is not checked",
        "nodesmith.stack.servers.binaries:check_custom_programs",
        _check_nothing,
        tests=(
            "test_missing_program_is_refused_and_its_setting_named",
            "test_program_of_the_wrong_version_is_refused",
        ),
    ),
)
