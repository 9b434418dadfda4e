"""Breaks in the protection against anonymous clients, web pages and terminal control codes."""

from typing import Any

from tests.mutations.arming import Break, names_of, rules


def _parse_without_limits(original: Any, self: Any, data: bytes) -> None:
    names_of(original).HttpToolsProtocol.data_received(self, data)


async def _keep_the_session(_: Any, self: Any, session_id: str, actor: str | None = None) -> Any:
    return next((each for each in await self.list(actor) if each.id == session_id), None)


async def _no_credential_is_known(_: Any, self: Any, shown: str) -> bool:
    return False


async def _admit(_: Any, deps: Any, token: str, session: str | None) -> None:
    """Whoever was admitted once stays so."""


API = (
    Break(
        rules("api"),
        "a head without end is read",
        "nodesmith.api.connections:LimitedHttp.data_received",
        _parse_without_limits,
        tests=("test_endless_request_is_refused_at_its_limit", "test_too_large_headers_get_a_431"),
    ),
    Break(
        rules("api"),
        "half a head and half a body are waited for without end",
        "nodesmith.api.connections:LimitedHttp.expire",
        lambda original, self: None,
        tests=("test_unfinished_body_times_out_and_its_route_ends",),
        waits=True,
    ),
    Break(
        rules("api"),
        "one address may have every connection",
        "nodesmith.runtime.connection_limits:OpenConnections.acquire",
        lambda original, self, address: original(self, address) or True,
        tests=("test_connection_above_the_limit_gets_a_503_and_is_closed",),
        limit_s=60,
        waits=True,
    ),
    Break(
        rules("api"),
        "every client is believed where it comes from",
        "nodesmith.runtime.settings:ControlSettings.trusted_proxies",
        lambda trusted: "*",
        tests=("test_every_default_of_the_settings_is_pinned",),
    ),
    Break(
        rules("api"),
        "a valid credential counts as a wrong one",
        "nodesmith.services.access.callers:KnownCredentials.include",
        _no_credential_is_known,
        tests=(
            "test_valid_credential_without_access_does_not_count",
            "test_credential_of_a_removed_node_does_not_count",
        ),
    ),
    Break(
        rules("api"),
        "a lock-out lasts ten minutes",
        "nodesmith.api.login_throttle:LoginFailures.failed",
        lambda original, self, key: 10 * original(self, key),
        tests=("test_wait_is_at_most_a_minute_whatever_the_limit", "test_lock_out_never_grows_beyond_a_minute"),
    ),
    Break(
        rules("api"),
        "a Retry-After is not read",
        "nodesmith.runtime.retry_after:retry_after_s",
        lambda original, header: None,
        tests=(
            "test_agent_honours_retry_after_of_the_control_plane",
            "test_watch_waits_for_retry_after",
        ),
    ),
    Break(
        rules("api"),
        "a browser that signs out keeps its session",
        "nodesmith.store.access.sign_in:SignIn.end",
        _keep_the_session,
        tests=("test_signed_out_browser_opens_nothing_even_with_a_copy_of_its_cookie",),
    ),
    Break(
        rules("api"),
        "a new admin token leaves browsers of the old one signed in",
        "nodesmith.services.access.callers:Access._admin_token_id",
        lambda original, self: "file",
        tests=("test_new_admin_token_signs_out_the_browsers_of_the_old_one",),
    ),
    Break(
        rules("api"),
        "a page of another origin may use the session",
        "nodesmith.api.auth:refuse_foreign_pages",
        lambda original, request: None,
        tests=(
            "test_change_by_cookie_needs_proof_that_our_page_asked",
            "test_page_of_another_origin_cannot_sign_out",
        ),
    ),
    Break(
        rules("api"),
        "a cookie that came without TLS is good with it",
        "nodesmith.api.auth:session_cookie",
        lambda original, request: "nodesmith_session",
        tests=("test_cookie_that_came_without_tls_opens_nothing_with_it",),
    ),
    Break(
        rules("api"),
        "answers may be cached",
        "nodesmith.api.middleware:_HEADERS",
        lambda headers: {name: value for name, value in headers.items() if name != "Cache-Control"},
        tests=("test_every_answer_has_the_headers_that_keep_browsers_safe",),
    ),
    Break(
        rules("api"),
        "logs are followed with a revoked token",
        "nodesmith.api.auth:still_admitted",
        _admit,
        tests=("test_logs_are_withheld_from_a_token_revoked_during_the_wait",),
    ),
    Break(
        rules("api"),
        "escape codes reach the terminal",
        "nodesmith.cli.output.terminal:safe",
        lambda original, text: text,
        tests=(
            "test_control_characters_are_printed_as_code_points",
            "test_rendered_output_is_safe",
            "test_logs_of_a_backend_are_safe_unless_raw_is_asked_for",
        ),
    ),
    Break(
        rules("api"),
        "names may hold escape codes",
        "nodesmith.domain.names:is_plain",
        lambda original, text: True,
        tests=("test_names_and_labels_cannot_contain_terminal_control_characters",),
    ),
    Break(
        rules("api"),
        "secrets are logged",
        "nodesmith.runtime.log_setup:redacted",
        lambda original, text: text,
        tests=("test_secrets_are_left_out", "test_our_lines_those_of_libraries_and_traces_are_clean"),
    ),
)
