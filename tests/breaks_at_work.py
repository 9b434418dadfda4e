"""Breaks in what carries an operation out: workflows, activities, the bus and the agent."""

from tests.rule_tables import Break, rules

AT_WORK = (
    Break(
        rules("S7"),
        "the worker's words are dropped",
        "activities/localai.py",
        "        return self._ended(Result.FAILED, error=reply.error)\n\n    async def _present",
        '        return self._ended(Result.FAILED, error="failed")\n\n    async def _present',
        only="test_a_refused_install_is_a_failure_with_the_workers_words",
    ),
    Break(
        rules("S9 S51 H23 G11"),
        "one node after another",
        "workflows/batch.py",
        "        if self._batch.max_parallel == 0:\n            return options.ADMIT_AT_ONCE",
        "        if self._batch.max_parallel == 0:\n            return max(0, 1 - len(self._open))",
    ),
    Break(
        rules("S11"),
        "who waits for a node does not hear a cancel",
        "workflows/backend_operation.py",
        "await self._sleep_until(self._woken, poll if left is None else min(poll, left))",
        "await workflow.wait_condition(lambda: self._node_heard)",
    ),
    Break(
        rules("S14 H31"),
        "every request is a run of its own",
        "runtime/temporal.py",
        "workflow_id=names.operation_workflow_id(asked.node_id, asked.wanted.family),",
        "workflow_id=names.operation_workflow_id(asked.node_id, asked.op_id),",
    ),
    Break(
        rules("S23"),
        "sent before anybody listens",
        "activities/following.py",
        "        async with self._link.attach(self._node_id, self._command.op_id) as reports:\n"
        "            word = await self._send()\n",
        "        word = await self._send()\n"
        "        async with self._link.attach(self._node_id, self._command.op_id) as reports:\n",
    ),
    Break(
        rules("S25 G9"),
        "a second try reports no progress",
        "agent/operations.py",
        "Gauge(command, self._reporter.progress, every=self._progress_every)",
        "Gauge(\n"
        "            command,\n"
        "            self._reporter.progress if self._journal.get(command.op_id) is None else _silence,\n"
        "            every=self._progress_every,\n"
        "        )",
        only="test_a_second_try_reports_its_progress_as_the_first_did",
    ),
    Break(
        rules("S27 S28 G5"),
        "an absent node ends the operation",
        "workflows/backend_operation.py",
        "if until is not None and workflow.now() >= until:",
        "if until is not None:",
    ),
    Break(
        rules("S35"),
        "what is there is fetched again",
        "agent/installer.py",
        "if installed is None or command.force or not _is_same(installed, digest):",
        "if True:",
        only="test_what_is_there_already_is_not_fetched_again",
    ),
    Break(
        rules("S36"),
        "commands are taken one after another, on one subject",
        "bus/commands.py",
        "    await bus.subscribe(subject, in_own_task)",
        "    await bus.subscribe(subject.replace('upgrade', 'install'), answer)",
        only="test_a_slow_upgrade_blocks_no_install",
    ),
    Break(
        rules("S37"),
        "nobody on the upgrade subject is the end",
        "activities/localai.py",
        "            if self._command.kind is not Kind.UPGRADE:\n                raise\n",
        "            raise\n",
    ),
    Break(
        rules("S38 S45 H21 H22 H26 G8"),
        "a timeout is a failed attempt",
        "workflows/backend_operation.py",
        "        else:\n            await self._lose_sight()\n\n    async def _conclude",
        "        else:\n            lost = Outcome(op_id=self._request.op_id, result=Result.FAILED)\n"
        "            await self._back_off(Reason.NODE_ERROR, lost)\n\n    async def _conclude",
        only="test_no_answer_in_time_is_still_installing_and_never_an_attempt",
    ),
    Break(
        rules("S39"),
        "a timeout of the bus is no timeout of ours",
        "bus/connection.py",
        "except (TimeoutError, nats.errors.Error) as error:\n            raise NoAnswer(",
        "except ZeroDivisionError as error:\n            raise NoAnswer(",
    ),
    Break(
        rules("S40"),
        "progress is not heard",
        "activities/following.py",
        "        self.last_progress = progress\n",
        "",
        only="test_a_lasting_install_is_announced_and_its_progress_heard",
    ),
    Break(
        rules("S41"),
        "stale progress counts",
        "bus/reports.py",
        "if mark != (0, 0) and mark <= self._newest.get(key, (0, 0)):",
        "if False:",
    ),
    Break(
        rules("S44 G7"),
        "a refused removal is told as a success",
        "activities/localai.py",
        "gone = _GONE in reply.error",
        "gone = True",
        only="removal_is_a_failure or refusal_is_a_failure",
    ),
    Break(
        rules("S48"),
        "it is tried for ever",
        "workflows/backend_operation.py",
        "if failures >= self._policy.max_attempts:",
        "if False:",
        only="test_exhausted_attempts_end_as_a_dead_letter",
    ),
    Break(
        rules("S57"),
        "an upgrade that is done is sent again",
        "activities/localai.py",
        "if self._task.on_node and self._command.kind is Kind.UPGRADE:",
        "if False:",
    ),
    Break(
        rules("S61"),
        "a fault ends the desk's own task",
        "agent/operations.py",
        "    except Exception as error:\n        log.exception",
        "    except ZeroDivisionError as error:\n        log.exception",
        only="test_an_operation_that_breaks_fails_alone",
    ),
    Break(
        rules("H27"),
        "who is away fills the window",
        "workflows/batch.py",
        "absent = (self._away | self._ready.keys()) - self._has_turn",
        "absent: set[str] = set()",
    ),
    Break(
        rules("G12"),
        "who comes back begins at once, window or not",
        "workflows/backend_operation.py",
        "        if self._turns.are_taken and not dispatched:\n",
        "        if False:\n",
        only="test_nodes_that_come_back_together_take_their_turns",
    ),
    Break(
        rules("G12"),
        "a pause and a stop are not for who comes back",
        "workflows/batch.py",
        "        if self._paused or self._cancelled_by is not None:\n            return ()\n        room = options",
        "        room = options",
        only="test_a_node_that_comes_back_to_a_paused_batch_waits_for_it",
    ),
    Break(
        rules("H27"),
        "a turn is kept by who goes away again",
        "workflows/turns.py",
        "            await self._tell_batch(is_ready=False)\n",
        "            pass\n",
        only="test_who_goes_away_again_gives_its_turn_back",
    ),
    Break(
        rules("H40"),
        "an upgrade starts nothing again",
        "agent/changeover.py",
        "        wanted = _wanted(command, old)\n        before",
        "        wanted = _wanted(command, [])\n        before",
        only="test_an_upgrade_restarts_the_same_set_and_a_rollback_too",
    ),
    Break(
        rules("H40"),
        "an upgrade kills what runs at once",
        "agent/changeover.py",
        "self._grace if grace is None else grace",
        "0.0",
        only="test_an_upgrade_lets_a_request_in_flight_finish",
    ),
    Break(
        rules("H42"),
        "an install starts a process",
        "agent/changeover.py",
        "    if command.start:\n",
        "    if True:\n",
    ),
    Break(
        rules("G1"),
        "a cancel changes only the row",
        "workflows/backend_operation.py",
        "if request.force or not (self._node.may_have_heard or in_doubt):",
        "if True:",
        only="test_a_running_install_is_stopped_on_its_node_first",
    ),
    Break(
        rules("G3"),
        "a cancel that comes before anybody asked is not told to the node",
        "workflows/backend_operation.py",
        "if request.force or not (self._node.may_have_heard or in_doubt):",
        "if request.force or not self._node.may_have_heard:",
        only="test_a_cancel_sent_while_no_worker_lives_is_carried_out_by_the_next",
    ),
    Break(
        rules("G2"),
        "a cancel waits its turn behind the install",
        "bus/commands.py",
        "    await bus.subscribe(subject, in_own_task)",
        "    turn = bus.__dict__.setdefault('turn', asyncio.Lock())\n\n"
        "    async def in_turn(message: Msg) -> None:\n"
        "        async def later() -> None:\n"
        "            async with turn:\n"
        "                await answer(message)\n\n"
        "        tasks.add(asyncio.create_task(later()))\n\n"
        "    await bus.subscribe(subject, in_turn)",
    ),
    Break(
        rules("G12"),
        "the window is ignored",
        "workflows/batch.py",
        "        if self._batch.max_parallel == 0:\n            return options",
        "        if True:\n            return options",
        only="test_no_more_than_the_window_run_at_once_and_all_get_their_turn",
    ),
    Break(
        rules("S30 G3"),
        "a cancel from before the restart is forgotten",
        "workflows/backend_operation.py",
        "        while self._ledger.state in OPEN:\n            if self._cancel is not None:\n",
        "        self._cancel = None\n        while self._ledger.state in OPEN:\n            if self._cancel:\n",
        only="test_a_cancel_sent_while_no_worker_lives_is_carried_out_by_the_next",
    ),
)
