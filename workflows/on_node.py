"""The node's end of an operation, as its run knows it: what was asked of it, and what it may have heard."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError

with workflow.unsafe.imports_passed_through():
    import workflows.policy as options
    from contracts import temporal as names
    from contracts.messages import CancelMode
    from contracts.temporal import CancelOrder, CancelWord, NodeTask, NodeWord, OperationInput
    from domain.node import Protocol


class OnNode:
    """Asks, listens and tells; what follows from the words is decided by the operation."""

    def __init__(self, start: OperationInput) -> None:
        self._request = start.request
        self._policy = start.policy
        self._listening: workflow.ActivityHandle[NodeWord] | None = None
        self._maybe = start.carried is not None and start.carried.dispatched_at is not None
        self._decision = 0
        self.is_unasked = start.asks_at_once and start.carried is None and start.request.protocol is Protocol.NODESMITH
        """the first word is still to be heard"""
        self._word_is_missing = self.is_unasked

    @property
    def may_have_heard(self) -> bool:
        return self._maybe or self.is_attached

    @property
    def is_in_doubt(self) -> bool:
        """Nobody has heard a word of it, but a worker that died may have asked."""
        return self._word_is_missing and not self.may_have_heard

    @property
    def is_attached(self) -> bool:
        return self._listening is not None

    @property
    def has_spoken(self) -> bool:
        return self._listening is not None and self._listening.done()

    async def first_word(self) -> NodeWord | None:
        """Heard where the run stands: what is quick on the node is over with it. None when we cannot know."""
        self.is_unasked = False
        try:
            word: NodeWord = await workflow.execute_local_activity(
                names.FIRST_WORD,
                self._task(on_node=False),
                result_type=NodeWord,
                summary=self._title(),
                **options.FIRST_WORD,
            )
        except FailureError:  # a local activity fails with its cause, bare
            return None
        if word == NodeWord():
            return None
        self._word_is_missing = False
        self._maybe = word.accepted or not (word.away or word.held)
        self._decision = word.decision
        return word

    def listen(self, *, on_node: bool) -> None:
        """Have somebody attached to the node's work; `has_spoken` when there is something to read."""
        self._listening = workflow.start_activity(
            names.RUN_ON_NODE,
            self._task(on_node=on_node),
            result_type=NodeWord,
            summary=self._title(),
            **options.run_on_node(self._policy),
        )

    async def read(self) -> NodeWord:
        """What was heard; nothing, if our worker died or stopped: the node goes on."""
        listening, self._listening, self._decision = self._listening, None, 0
        self._word_is_missing = False
        was_there, self._maybe = self._maybe, True
        try:
            word = await listening if listening is not None else NodeWord()
        except ActivityError:
            return NodeWord()
        if (word.away or word.held) and not word.accepted:
            self._maybe = was_there
        return word

    def let_go(self) -> None:
        if self._listening is not None:
            self._listening.cancel()

    async def tell_at_once(self, op_id: str, mode: CancelMode) -> CancelWord | None:
        """Stop that operation: most nodes answer while the run stands here. None when this one does not."""
        if not workflow.patched(names.PATCH_TOLD_AT_ONCE):
            return None
        try:
            word: CancelWord = await workflow.execute_local_activity(
                names.CANCEL_ON_NODE, self._order(op_id, mode), **self._telling(op_id), **options.CANCEL_AT_ONCE
            )
        except FailureError:
            return None
        return word

    async def tell(self, op_id: str, mode: CancelMode) -> CancelWord:
        """The same beside the run, for as long as it takes."""
        word: CancelWord = await workflow.execute_activity(
            names.CANCEL_ON_NODE, self._order(op_id, mode), **self._telling(op_id), **options.cancel_on_node()
        )
        return word

    def _task(self, *, on_node: bool) -> NodeTask:
        return NodeTask(request=self._request, policy=self._policy, on_node=on_node, decision=self._decision)

    def _title(self) -> str:
        wanted = self._request.wanted
        return f"{wanted.kind} {wanted.backend} on {self._request.node_name}"

    def _telling(self, op_id: str) -> dict[str, Any]:
        return {"result_type": CancelWord, "summary": f"stop {op_id} on {self._request.node_name}"}

    def _order(self, op_id: str, mode: CancelMode) -> CancelOrder:
        request = self._request
        return CancelOrder(
            node_id=request.node_id,
            node_name=request.node_name,
            protocol=request.protocol,
            op_id=op_id,
            family=request.wanted.family,
            mode=mode,
        )
