"""Breaks that only a whole system shows: each starts a stack of its own."""

from tests.rule_tables import Break, rules

END_TO_END = (
    Break(
        rules("S8"),
        "the work ends with the request that asked for it",
        "api/routers/nodes.py",
        "    return NodeOrder(http, request, ask)\n",
        "    import asyncio\n\n"
        "    from contracts.operation_http import CancelBody\n\n"
        "    async def as_long_as_asked(kind: Kind) -> JobAccepted:\n"
        "        accepted = await ask(kind)\n\n"
        "        async def end() -> None:\n"
        "            while not await http.is_disconnected():\n"
        "                await asyncio.sleep(0.1)\n"
        "            await parts.cancellation.cancel(accepted.jobID, CancelBody(), actor=actor)\n\n"
        "        parts.__dict__.setdefault('ending', []).append(asyncio.create_task(end()))\n"
        "        return accepted\n\n"
        "    return NodeOrder(http, request, as_long_as_asked)\n",
    ),
    Break(
        rules("S22"),
        "an upgrade reports no progress",
        "agent/operations.py",
        "Gauge(command, self._reporter.progress, every=self._progress_every)",
        "Gauge(\n"
        "            command,\n"
        "            self._reporter.progress if command.kind != 'upgrade' else lambda _: asyncio.sleep(0),\n"
        "            every=self._progress_every,\n"
        "        )",
    ),
    Break(
        rules("H30"),
        "force is not passed on to the node",
        "activities/node.py",
        "force=wanted.force,",
        "force=False,",
    ),
    Break(
        rules("S31 G4"),
        "an operation dies with the process that runs it",
        "workflows/on_node.py",
        "except ActivityError:\n            return NodeWord()",
        "except ActivityError:\n            return NodeWord(refused='the process that ran it has died')",
        only="test_any_one_process_may_die_in_the_middle and worker",
    ),
)
