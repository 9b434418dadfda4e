"""The upstream behaviour, put into our code rule by rule: the tests of a rule were seen failing with it.

`python -m tests.breaking` repeats it, on a copy. Here: what is asked, written down and told.
"""

from tests.breaks_at_work import AT_WORK
from tests.rule_tables import Break, rules

BREAKS = (
    *AT_WORK,
    Break(
        rules("S1"),
        "the answer waits for the node",
        "services/admission.py",
        "        if idempotency_key:\n            await after_start(",
        "        while (row := await self.operations.find(op_id)) is None or row.state not in ENDED:\n"
        "            await __import__('asyncio').sleep(0.1)\n"
        "        if idempotency_key:\n            await after_start(",
    ),
    Break(
        rules("S2"),
        "an empty request is let through",
        "services/intents.py",
        "if not request.backend and not request.uri:",
        "if False:",
    ),
    Break(
        rules("S4 S5 H24"),
        "the lock names the backend, not the node",
        "contracts/temporal.py",
        'return f"backend:{node_id}:{family}"',
        'return f"backend:{family}"',
    ),
    Break(
        rules("S6"),
        "the list does not name the node",
        "api/localai.py",
        '        "nodeID": operation.node_id,\n        "nodes": [_node(operation)],\n',
        '        "nodes": [_node(operation)],\n',
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
        "if row.op_id not in alive and not await self._runs_after_all(row):",
        "if row.op_id in alive and not await self._runs_after_all(row):",
    ),
    Break(
        rules("S15"),
        "a success stays listed",
        "store/operations.py",
        "conditions.append(or_(IS_OPEN, IS_UNSUCCESSFUL))",
        "conditions.append(or_(IS_OPEN, IS_UNSUCCESSFUL, OperationRow.state == State.SUCCEEDED))",
    ),
    Break(
        rules("S17"),
        "a cancelled one stays listed",
        "store/operations.py",
        "conditions.append(or_(IS_OPEN, IS_UNSUCCESSFUL))",
        "conditions.append(or_(IS_OPEN, IS_UNSUCCESSFUL, OperationRow.state == State.CANCELLED))",
    ),
    Break(
        rules("S18"),
        "a failure is evicted",
        "store/operations.py",
        "conditions.append(or_(IS_OPEN, IS_UNSUCCESSFUL))",
        "conditions.append(IS_OPEN)",
    ),
    Break(
        rules("S19"),
        "still installing is evicted",
        "store/operations.py",
        "conditions.append(or_(IS_OPEN, IS_UNSUCCESSFUL))",
        "conditions.append(or_(IS_OPEN & (OperationRow.state != State.STILL_INSTALLING), IS_UNSUCCESSFUL))",
    ),
    Break(
        rules("S20"),
        "what is queued is not listed",
        "store/operations.py",
        "conditions.append(or_(IS_OPEN, IS_UNSUCCESSFUL))",
        "conditions.append(or_(IS_OPEN & (OperationRow.state != State.QUEUED), IS_UNSUCCESSFUL))",
    ),
    Break(
        rules("S21"),
        "events are numbered without the lock",
        "store/operations.py",
        "pg_advisory_xact_lock(:lock)::text",
        "CAST(:lock AS text)",
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
        "if row.op_id not in alive and not await self._runs_after_all(row):",
        "if True:",
    ),
    Break(
        rules("S46"),
        "agent nodes are asked too",
        "services/batches.py",
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
        rules("S49 H20"),
        "a pending node is let through",
        "services/admission.py",
        "    if node.status is NodeStatus.PENDING:\n        raise",
        '    if node.status == "nothing":\n        raise',
    ),
    Break(
        rules("S55"),
        "an upgrade goes where it never was",
        "services/batches.py",
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
        rules("S58"),
        "the line of the node is wiped",
        "api/localai.py",
        "        nodes=[_node(operation)],\n",
        "        nodes=[],\n",
        only="test_status_of_a_running_operation_is_localais",
    ),
    Break(
        rules("S59"),
        "the list is in no order",
        "api/localai.py",
        "return int(operation.progress.percentage), operation.backend, operation.op_id",
        'return 0, "", operation.op_id',
        only="test_list_is_ordered_by_progress_then_name",
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
        "services/batches.py",
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

SEEN_FAILING = {rule: each.what for each in BREAKS for rule in each.rules}
"""rule -> what was broken when its test was seen failing"""
