"""The SDK's workflow sandbox, without its lookup of a serialization context for each payload."""

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
    """One run in the sandbox. All our payloads use one converter and no external storage.

    The SDK would enter the sandbox four times per payload to ask for both: an eighth of a worker's CPU time.
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
