"""Breaks in cures of faults that attacks found: limits, hidden secrets, second checks, clocks, claims of others."""

import base64
import json
import shutil
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from tests.mutations.arming import Break, Unresolvable, names_of, rules


def _queue_every_request(original: Any, self: Any) -> Any:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    self._head_since, self._body_until = None, self._clock() + self._limits.body_s
    return HttpToolsProtocol.on_headers_complete(self)


async def _approve_whoever_has_a_credential(original: Any, self: Any, credential_hash: str) -> Any:
    node = await original(self, credential_hash)
    return node and replace(node, approved_at=node.approved_at or node.created_at)


def _crash_on_nested(original: Any, cursor: str, order: str) -> Any:
    with suppress(ValueError, TypeError):
        json.loads(base64.urlsafe_b64decode(cursor + "=="))
    return original(cursor, order)


async def _ask_for_every_key(original: Any, self: Any, kid: str) -> None:
    await self.refresh()


def _do_nothing(original: Any, *args: Any) -> None:
    """The check is missing."""


async def _check_nothing(original: Any, *args: Any) -> None:
    """The check is missing."""


async def _believe_claimed_boots(original: Any, self: Any, known: Any, request: Any, *, is_own: bool) -> None:
    if known is None or request.boot_id not in ("", known.boot_id):
        await original(self, known, request, is_own=is_own)


def _of_any_node(statement: Any) -> Any:
    """In SQL there is no function to replace: the condition is taken out of the text."""
    from sqlalchemy import text

    condition = " AND operations.node_id = tick.node_id"
    if condition not in statement.text:
        raise Unresolvable("write_gauges no longer compares the node in this way.")
    return text(statement.text.replace(condition, ""))


_NO_LIMIT = datetime.max.replace(tzinfo=timezone(timedelta(hours=-23)))

FOUND: tuple[Break, ...] = (
    Break(
        rules("connections"),
        "any number of requests may wait on one connection",
        "nodesmith.api.connections:LimitedHttp.on_headers_complete",
        _queue_every_request,
        tests=("test_many_requests_that_wait_on_one_connection_are_refused",),
    ),
    Break(
        rules("signed"),
        "a key of minisign verifies signatures of cosign",
        "nodesmith.gallery.cosign:_cosign_keys",
        lambda original, keys: list(keys),
        tests=("test_a_signature_that_minisign_made_does_not_count_as_one_of_cosign",),
    ),
    Break(
        rules("artifacts"),
        "a node that waits for approval reads archives",
        "nodesmith.store.nodes.nodes:Nodes.with_credential",
        _approve_whoever_has_a_credential,
        tests=("test_node_that_waits_for_approval_reads_no_artifact",),
    ),
    Break(
        rules("temporal"),
        "texts of signals have any length",
        "nodesmith.contracts.temporal.operations:LONGEST_SIGNAL_TEXT",
        lambda limit: 10_000_000,
        tests=("test_texts_of_signals_are_cut",),
    ),
    Break(
        rules("temporal"),
        "an operator deletes runs in a batch",
        "nodesmith.api.temporal_ui:_is_for_operators",
        lambda original, batch: True,
        tests=("test_batch_deletes_no_runs_for_an_operator",),
    ),
    Break(
        rules("confinement"),
        "a scratch folder is deleted level by level",
        "nodesmith.agent.disk.tree_removal:remove_tree",
        lambda original, folder: shutil.rmtree(folder, ignore_errors=True),
        tests=("test_scratch_that_a_backend_made_too_deep_is_deleted",),
    ),
    Break(
        rules("confinement"),
        "a backend in a folder too deep to name stops the agent",
        "nodesmith.agent.run.backend_process:_working_folder",
        lambda original, process: process.cwd(),
        tests=("test_backend_in_a_folder_too_deep_to_name_does_not_stop_the_search",),
    ),
    Break(
        rules("audit"),
        "a body in pieces is not in the audit trail",
        "nodesmith.api.auditing:_copy_body",
        lambda original, scope, receive, body: receive,
        tests=("test_body_that_arrives_in_pieces_is_audited",),
    ),
    Break(
        rules("orders"),
        "every unknown key is looked up at once",
        "nodesmith.agent.link.pinned_trust:PinnedTrust.look_up",
        _ask_for_every_key,
        tests=("test_orders_with_invented_keys_cost_one_request",),
    ),
    Break(
        rules("orders"),
        "a request of before the start of the agent counts",
        "nodesmith.agent.operations.order_checks:OrderVerifier._refuse_before_start",
        _do_nothing,
        tests=("test_request_is_not_carried_out_again_after_the_agent_has_restarted",),
    ),
    Break(
        rules("orders"),
        "the agent forgets which requests it has carried out",
        "nodesmith.agent.operations.used_requests:UsedRequests._load",
        _do_nothing,
        tests=("test_request_is_not_carried_out_again_by_an_agent_that_restarts_at_once",),
    ),
    Break(
        rules("orders"),
        "a request is judged by the newest order instead of the API's clock",
        "nodesmith.agent.link.pinned_trust:PinnedTrust.clock",
        lambda original, self: self.now(),
        tests=("test_stop_counts_after_the_clock_of_the_control_plane_was_ahead_for_a_while",),
    ),
    Break(
        rules("archives"),
        "an archive has any number of empty compressed parts",
        "nodesmith.agent.disk.decompression:_FrameLimit.begin_frame",
        _do_nothing,
        tests=("test_a_megabyte_of_empty_compressed_parts_is_refused",),
    ),
    Break(
        rules("cursors"),
        "a nested cursor crashes the API",
        "nodesmith.store.cursors:_read",
        _crash_on_nested,
        tests=("test_a_cursor_that_is_not_ours_is_named",),
    ),
    Break(
        rules("signed"),
        "a secret key in the folder is packed",
        "nodesmith.cli.commands.packing:_signing_keys",
        lambda original, folder, paths: names_of(original).read_secrets(paths),
        tests=("test_secret_key_in_the_packed_folder_is_not_published",),
    ),
    Break(
        rules("deadline"),
        "the deadline does not count between attempts",
        "nodesmith.workflows.backend_operation:BackendOperation._is_past_deadline",
        lambda original, self: False,
        tests=("test_a_deadline_ends_an_operation_whose_attempts_fail_at_once",),
        limit_s=90,
        waits=True,
    ),
    Break(
        rules("retry"),
        "a retry does not ask whether the backend is still installed",
        "nodesmith.services.operations.admission:Admission._refuse_not_installed",
        _check_nothing,
        tests=("test_retry_of_an_upgrade_is_refused_after_the_backend_was_removed",),
    ),
    Break(
        rules("limits"),
        "a batch of any size is admitted",
        "nodesmith.services.batches.payload_size:refuse_too_large",
        _do_nothing,
        tests=("test_batch_that_could_not_continue_as_new_is_refused_and_the_possible_size_named",),
    ),
    Break(
        rules("clock"),
        "a process is identified by the clock of the day",
        "nodesmith.runtime.process_identity:started_at",
        lambda original, pid: names_of(original)._created_at(pid),
        tests=(
            "test_children_are_found_again_after_the_clock_was_set",
            "test_a_process_is_the_same_after_the_clock_was_set",
        ),
    ),
    Break(
        rules("clock"),
        "a clock that was set back keeps dead nodes healthy",
        "nodesmith.store.nodes.nodes:CLOCK_SET_BACK",
        lambda lead: timedelta(days=3650),
        tests=("test_dead_node_is_offline_although_the_clock_was_set_back",),
    ),
    Break(
        rules("readings"),
        "a time that nobody can read is stored",
        "nodesmith.contracts.nats.readings:LATEST",
        lambda latest: _NO_LIMIT,
        tests=("test_odd_clock_of_one_node_spoils_no_other_nodes_heartbeat", "test_list_with_odd_times_is_taken_over"),
    ),
    Break(
        rules("readings"),
        "a heartbeat that cannot be stored takes the others along",
        "nodesmith.bus.heartbeats:HeartbeatSink._take_singly",
        _check_nothing,
        tests=("test_heartbeat_that_cannot_be_stored_costs_no_other_node_its_heartbeat",),
        waits=True,
    ),
    Break(
        rules("readings"),
        "bytes that are no signature are skipped",
        "nodesmith.bus.signed_messages:_decoded",
        lambda original, text: base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4)),
        tests=("test_envelope_with_other_bytes_in_its_signature_is_rejected",),
    ),
    Break(
        rules("secrets"),
        "the query of an address is hidden up to a semicolon",
        "nodesmith.domain.addresses:_hidden",
        lambda original, found: "".join(found[0].partition(";")[1:]) if ";" in found[0] else original(found),
        tests=("test_query_is_hidden_to_its_end",),
    ),
    Break(
        rules("sources"),
        "metadata services at public addresses are sources",
        "nodesmith.domain.source_policy:_NOT_PUBLIC",
        lambda networks: (),
        tests=("test_addresses_that_are_not_public_are_refused",),
    ),
    Break(
        rules("sources"),
        "responses are decoded whatever their encoding",
        "nodesmith.gallery.source_http:_ENCODINGS",
        lambda encodings: encodings | {"zstd", "gzip, zstd", "br"},
        tests=("test_encoding_that_was_not_asked_for_is_not_decoded", "test_index_is_read_plain_or_as_gzip_only"),
    ),
    Break(
        rules("registration"),
        "a claimed boot replaces the node that answers",
        "nodesmith.services.nodes.registration:Registration._refuse_rival",
        _believe_claimed_boots,
        tests=("test_registration_token_does_not_replace_a_node_that_answers_whatever_boot_is_claimed",),
    ),
    Break(
        rules("tombstones"),
        "invented cancels leave any number of tombstones",
        "nodesmith.agent.operations.journal:DiskJournal.unknown_cancelled",
        lambda original, self: 0,
        tests=("test_invented_cancels_do_not_fill_the_disk",),
    ),
    Break(
        rules("keys"),
        "keys have the file mode of the public list",
        "nodesmith.runtime.keyring:_SHARED",
        lambda mode: 0o644,
        tests=("test_public_chain_makes_no_key_readable_for_others",),
    ),
    Break(
        rules("reports"),
        "a node may send any number of reports",
        "nodesmith.bus.report_rate:ReportRate.admits",
        lambda original, self, sender: True,
        tests=(
            "test_sender_has_a_burst_and_then_a_rate",
            "test_flood_of_progress_drops_no_outcome_and_no_report_of_another_node",
        ),
    ),
    Break(
        rules("reports"),
        "a node writes the progress of another node's operation",
        "nodesmith.store.operations.operations:_GAUGES",
        _of_any_node,
        tests=("test_gauge_that_another_node_sends_for_an_operation_is_not_written",),
    ),
    Break(
        rules("access"),
        "a long request is carried out although its token was revoked meanwhile",
        "nodesmith.api.auth:still_admitted",
        _check_nothing,
        tests=(
            "test_upload_of_a_token_that_is_revoked_meanwhile_is_not_listed",
            "test_change_whose_token_is_revoked_while_its_body_arrives_is_refused",
        ),
    ),
)
