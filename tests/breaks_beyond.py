"""Breaks of promises without a number: the event stream, what is degraded, and processes that are killed or stopped."""

from tests.rule_tables import Break

_EVENTS = "tests/api/test_events.py::"
_SNAPSHOTS = "tests/api/test_snapshots.py::"
_PULSE = "tests/api/test_stream_pulse.py::"
_DEGRADED = "tests/api/test_degraded.py::"
_CHAOS = "tests/e2e/test_chaos.py::"
_STREAM, _DEGRADED_MODES, _CHAOTIC = ("stream",), ("degraded",), ("chaos",)

BEYOND = (
    Break(
        _STREAM,
        "Last-Event-ID is ignored",
        "api/stream.py",
        "return newest if last_event_id is None else min(last_event_id, newest)",
        "return newest",
        tests=(
            _EVENTS + "test_reader_that_changes_replicas_misses_nothing_and_gets_nothing_twice",
            _EVENTS + "test_stream_begins_now_unless_a_number_is_given",
        ),
    ),
    Break(
        _STREAM,
        "the last event is told again",
        "api/stream.py",
        "bisect_right(self._numbers, cursor)",
        "max(bisect_right(self._numbers, cursor) - 1, 0)",
        tests=(_EVENTS + "test_reader_that_changes_replicas_misses_nothing_and_gets_nothing_twice",),
    ),
    Break(
        _STREAM,
        "only what is in this replica's memory is told",
        "api/stream.py",
        "if self._floor is not None and cursor >= self._floor:",
        "if True:",
        tests=(_EVENTS + "test_what_lies_before_the_window_comes_from_the_database",),
    ),
    Break(
        _STREAM,
        "a reader that takes nothing is kept for ever",
        "api/routers/events.py",
        "async with asyncio.timeout(self._stuck_after_s):",
        "async with asyncio.timeout(None):",
        tests=(_EVENTS + "test_reader_that_takes_nothing_is_let_go",),
    ),
    Break(
        _STREAM,
        "every tick waits for a slow reader",
        "api/stream.py",
        "self._ticks[tick.op_id] = frame",
        "self._ticks[f'{tick.op_id} {len(self._ticks)}'] = frame",
        tests=(_EVENTS + "test_reader_that_takes_nothing_is_let_go",),
    ),
    Break(
        _STREAM,
        "a filter is forgotten once the reader has caught up",
        "api/stream.py",
        "return [event for event in newer if wanted.takes(event)], max(cursor, known), True",
        "return newer, max(cursor, known), True",
        tests=(_EVENTS + "test_stream_is_filtered_by_operation_node_and_batch",),
    ),
    Break(
        _STREAM,
        "the filter by node is left out",
        "api/stream.py",
        "self.node_id in (None, event.node_id)",
        "True",
        tests=(_EVENTS + "test_stream_is_filtered_by_operation_node_and_batch",),
    ),
    Break(
        _STREAM,
        "the filter by batch is left out",
        "api/stream.py",
        "self.batch_id in (None, event.batch_id)",
        "True",
        tests=(_EVENTS + "test_stream_is_filtered_by_operation_node_and_batch",),
    ),
    Break(
        _STREAM,
        "ticks are not filtered",
        "api/stream.py",
        "if self.interest.takes_tick(tick):",
        "if True:",
        tests=(
            _EVENTS + "test_progress_of_a_node_rides_the_stream_without_a_number",
            _EVENTS + "test_ticks_of_a_batch_reach_its_stream",
        ),
    ),
    Break(
        _STREAM,
        "events are numbered without the lock",
        "store/operations.py",
        "pg_advisory_xact_lock(:lock)::text",
        "CAST(:lock AS text)",
        tests=("tests/store/test_events.py::test_reader_that_follows_by_number_misses_nothing_of_fifty_writers",),
    ),
    Break(
        _STREAM,
        "the parts of an answer are read one after the other",
        "store/database.py",
        'isolation_level="REPEATABLE READ"',
        'isolation_level="READ COMMITTED"',
        tests=(
            _SNAPSHOTS + "test_reader_of_the_list_hears_of_an_end_recorded_while_it_was_read",
            _SNAPSHOTS + "test_batch_that_ends_while_it_is_read_is_shown_before_its_end",
            _SNAPSHOTS + "test_inventory_is_as_old_as_it_says",
            "tests/api/test_moments.py::test_every_answer_is_read_at_one_moment",
        ),
    ),
    Break(
        _STREAM,
        "whatever wakes a stream puts its keep-alive off",
        "api/stream.py",
        "            await _within(stream.news, pulse.left())",
        "            pulse.__init__(self._keep_alive_s)\n            await _within(stream.news, pulse.left())",
        tests=(_PULSE + "test_events_of_other_operations_do_not_delay_the_keep_alive",),
    ),
    Break(
        _STREAM,
        "a revoked token keeps its streams",
        "api/stream.py",
        "if not await is_admitted():",
        "if False:",
        tests=(_PULSE + "test_revoked_token_ends_its_streams",),
    ),
    Break(
        _DEGRADED_MODES,
        "without NATS an operation fails",
        "activities/following.py",
        "        except NoAnswer as silence:\n",
        "        except NoAnswer as silence:\n            return NodeWord(refused='NATS does not answer')\n",
        tests=("tests/e2e/test_kill.py::test_without_nats_operations_are_accepted_wait_with_a_reason_and_go_on",),
    ),
    Break(
        _DEGRADED_MODES,
        "without NATS every node is away",
        "activities/following.py",
        "self._link_is_down = isinstance(silence, LinkDown)",
        "self._link_is_down = False",
        tests=("tests/activities/test_following.py::test_without_nats_it_is_not_the_node_that_is_away",),
    ),
    Break(
        _DEGRADED_MODES,
        "without NATS a batch goes on to the next nodes",
        "activities/batches.py",
        "how == (State.WAITING, Reason.NODE_AWAY)",
        "how[1] in (Reason.NODE_AWAY, Reason.NATS_DOWN)",
        tests=("tests/services/test_batches.py::test_who_cannot_be_asked_without_nats_keeps_its_place_in_the_window",),
    ),
    Break(
        _DEGRADED_MODES,
        "without NATS an install is refused",
        "services/admission.py",
        "        wanted = self.intents.wanted(kind, request, capability=capability(target))\n",
        "        wanted = self.intents.wanted(kind, request, capability=capability(target))\n"
        "        if target.last_heartbeat is None:\n"
        "            raise UnknownNode('NATS does not answer.', node=node)\n",
        tests=(_DEGRADED + "test_without_nats_installs_are_accepted_and_wait",),
    ),
    Break(
        _DEGRADED_MODES,
        "without PostgreSQL a request is a defect of ours",
        "store/database.py",
        "        if not _is_outage(error):\n",
        "        if True:\n",
        tests=(_DEGRADED + "test_without_postgresql_everything_that_needs_it_is_503",),
    ),
    Break(
        _DEGRADED_MODES,
        "lists do not say how old they are",
        "api/routers/operations.py",
        "stale_since=",
        "stale_since=None and ",
        tests=(_DEGRADED + "test_without_temporal_writes_are_refused_and_lists_are_served",),
    ),
    Break(
        _CHAOTIC,
        "a repeated request is another batch",
        "services/batches.py",
        "batch = batch_of(claim.op_id)",
        "batch = batch_of(__import__('domain.identity').identity.new_op_id())",
        tests=("tests/services/test_batch_crashes.py::test_an_api_may_die_while_it_starts_a_batch",),
    ),
    Break(
        _CHAOTIC,
        "a repeated admission draws new ids",
        "activities/batches.py",
        "_ASKED_AT_ONCE = 10\n",
        "_ASKED_AT_ONCE = 10\n_first_id = member_op_id\n\n\n"
        "def member_op_id(batch_id: str, node_id: str) -> str:\n"
        "    attempt = activity.info().attempt\n"
        "    return _first_id(batch_id if attempt == 1 else f'{batch_id}-{attempt}', node_id)\n",
        tests=("tests/services/test_batch_crashes.py::test_a_worker_may_die_at_any_admission_of_a_batch",),
        limit_s=90,
    ),
    Break(
        _CHAOTIC,
        "a late gauge is written on a row that has ended",
        "store/operations.py",
        'WHERE op_id = ANY(:op_ids) AND {one_of("state", OPEN)}',
        "WHERE op_id = ANY(:op_ids)",
        tests=(_CHAOS + "test_a_stopped_worker_that_wakes_late_changes_nothing",),
    ),
    Break(
        _CHAOTIC,
        "the API's own row overwrites what is there",
        "store/operations.py",
        '_FIRST = _written("DO NOTHING")',
        '_FIRST = _written("(op_id) DO UPDATE SET state = excluded.state, at = excluded.at, seq = excluded.seq")',
        tests=(_CHAOS + "test_a_stopped_api_that_wakes_late_changes_nothing",),
    ),
)
