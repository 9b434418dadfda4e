"""The upstream behaviour, put into our code rule by rule: the tests of a rule were seen failing with it.

`python -m tests.breaking` repeats it, on a copy. Here: what is asked and admitted.
"""

from tests.breaks_at_work import AT_WORK
from tests.breaks_end_to_end import END_TO_END
from tests.breaks_told import TOLD
from tests.rule_tables import Break, rules

BREAKS = (
    *AT_WORK,
    *END_TO_END,
    *TOLD,
    Break(
        rules("S1"),
        "the answer waits for the node",
        "services/admission.py",
        "        await asked.note(claim, job_id)\n",
        "        while (row := await self.operations.find(job_id)) is None or row.state not in ENDED:\n"
        "            await __import__('asyncio').sleep(0.1)\n"
        "        await asked.note(claim, job_id)\n",
    ),
    Break(
        rules("S2"),
        "an empty request is let through",
        "services/intents.py",
        "if not request.backend and not request.uri:",
        "if False:",
    ),
    Break(
        rules("S3"),
        "a request for one node goes to everybody",
        "services/batch_planning.py",
        "return [await self._known(name) for name in dict.fromkeys(request.nodes)]",
        "return await self.nodes.list()",
        only="test_one_target_is_one_node_and_everywhere_is_everybody",
    ),
    Break(
        rules("S4 S5 H24"),
        "the lock names the backend, not the node",
        "contracts/temporal.py",
        'return f"backend:{node_id}:{family}"',
        'return f"backend:{family}"',
    ),
    Break(
        rules("S12 H25 G6"),
        "the name of a direct uri is lost",
        "services/intents.py",
        'name=request.name or (request.backend or family if scheme == OCI else ""),',
        'name="",',
    ),
    Break(
        rules("S13"),
        "orphans are left as they are",
        "services/repair.py",
        "if row.op_id not in alive and not await self._runs_after_all(row) and not await self._has_ended(row):",
        "if row.op_id in alive and not await self._runs_after_all(row):",
    ),
    Break(
        rules("S24"),
        "progress has a subject of its own kind",
        "contracts/subjects.py",
        'return f"nodes.{token(node_id)}.backend.install.{token(op_id)}.progress"',
        'return f"nodes.{token(node_id)}.backend.upgrade.{token(op_id)}.progress"',
    ),
    Break(
        rules("S26"),
        "what waits outlives the drain",
        "services/lifecycle.py",
        "doomed = [row for row in await self.life.open_on(known.id) if _ends_by_drain(row, running)]",
        "doomed: list[OperationView] = []",
    ),
    Break(
        rules("S29"),
        "the sweep ends what runs",
        "services/repair.py",
        "if row.op_id not in alive and not await self._runs_after_all(row) and not await self._has_ended(row):",
        "if True:",
    ),
    Break(
        rules("S42"),
        "one node that fails ends the whole request",
        "services/models.py",
        "return _not_unloaded(told, Unloading.FAILED, error)",
        "raise",
        only="test_a_model_is_unloaded_on_every_node_that_has_it_and_a_node_that_fails_is_named",
    ),
    Break(
        rules("S42"),
        "what runs nowhere cannot be unloaded",
        "services/models.py",
        "            if not held:\n                return None",
        "            if not held:\n                return _not_unloaded(told, Unloading.FAILED, NodesmithError())",
        only="test_a_model_that_runs_nowhere_is_unloaded_already",
    ),
    Break(
        rules("S43"),
        "only a stop with a name is understood",
        "bus/commands.py",
        'return Command() if payload in (b"", b"null") else Command.decode(payload)',
        "return Command.decode(payload)",
        only="test_stop_comes_with_or_without_a_name",
    ),
    Break(
        rules("S43"),
        "a stop is accepted and not sent",
        "services/stopping.py",
        "if not await self.processes.stop_backend(node.id,",
        "if False and not await self.processes.stop_backend(node.id,",
        only="test_stop_goes_straight_to_the_node_and_is_audited",
    ),
    Break(
        rules("S46"),
        "agent nodes are asked too",
        "services/batch_planning.py",
        "    if node.node_type is not NodeType.BACKEND:\n        why =",
        '    if node.node_type == "nothing":\n        why =',
    ),
    Break(
        rules("S47"),
        "nobody at the node is no evidence",
        "services/witness.py",
        "            await self._note(self.nodes.mark_unreachable(node_id, self.clock()))\n",
        "",
    ),
    Break(
        rules("S48"),
        "a dead letter cannot be driven again",
        "services/admission.py",
        "if row.state not in ENDED or row.state is State.SUCCEEDED:",
        "if row.state not in ENDED or row.state in (State.SUCCEEDED, State.DEAD_LETTER):",
        only="test_a_retry_is_a_new_operation_that_names_the_old",
    ),
    Break(
        rules("S49 H20"),
        "a pending node is let through",
        "services/admission.py",
        "    if node.status is NodeStatus.PENDING:\n        raise",
        '    if node.status == "nothing":\n        raise',
    ),
    Break(
        rules("S55"),
        "an upgrade goes where it never was",
        "services/admission.py",
        "NEEDS_IT_INSTALLED = frozenset({Kind.UPGRADE, Kind.ROLLBACK})",
        "NEEDS_IT_INSTALLED = frozenset({Kind.ROLLBACK})",
    ),
    Break(
        rules("S56"),
        "one node that is away spoils the whole look",
        "services/inventory.py",
        "        except NodesmithError as error:\n            self._not_before",
        "        except ZeroDivisionError as error:\n            self._not_before",
    ),
    Break(
        rules("S60"),
        "a running removal is cancelled",
        "services/cancellation.py",
        "if row.kind is Kind.REMOVE and row.state in (State.RUNNING, State.STILL_INSTALLING) and not body.force:",
        "if False:",
    ),
    Break(
        rules("S62"),
        "a success can be overwritten",
        "domain/operation.py",
        "for state, moves in _MOVES.items()",
        "for state, moves in {**_MOVES, State.SUCCEEDED: {}}.items()",
    ),
    Break(
        rules("S63 H41"),
        "the guard is left out",
        "services/batch_planning.py",
        "        self._refuse_concrete(request)\n",
        "",
    ),
    Break(
        rules("G10"),
        "another intent is told as joined",
        "services/gate.py",
        "if holder.intent == intent:",
        "if True:",
    ),
)

SEEN_FAILING = {
    rule: "; ".join(each.what for each in BREAKS if rule in each.rules)
    for rule in dict.fromkeys(rule for each in BREAKS for rule in each.rules)
}
"""rule -> what was broken when its tests were seen failing"""
