"""The SDK's sandbox around workflows, as it is; only where a payload belongs is not asked of it."""

from dataclasses import dataclass
from typing import Any

from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.workflow import Info


@dataclass(frozen=True)
class Sandbox(SandboxedWorkflowRunner):
    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return Sandboxed(super().create_instance(det))


class Sandboxed(WorkflowInstance):
    """One run. Our payloads are converted in one way, wherever they belong, and stored nowhere else.

    The SDK would enter the sandbox four times a payload to ask: an eighth of a worker's processor time.
    """

    def __init__(self, run: WorkflowInstance) -> None:
        self._run = run

    def activate(self, act: Any) -> Any:
        return self._run.activate(act)

    def get_serialization_context(self, command_info: Any) -> SerializationContext | None:
        del command_info
        return None

    def get_external_store_context(self, command_info: Any) -> StorageDriverStoreContext:
        del command_info
        return StorageDriverStoreContext(target=None)

    def get_info(self) -> Info:
        return self._run.get_info()

    def get_thread_id(self) -> int | None:
        return self._run.get_thread_id()
