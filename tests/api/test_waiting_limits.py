"""How long the API waits, and the limits that it passes to a run."""

from nodesmith.contracts.temporal.operations import OperationInput, operation_workflow_id
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import connect
from tests.api.station import Api
from tests.contracts.test_defaults import POLICY


async def test_removal_is_waited_for_two_minutes(api: Api) -> None:
    """H28: LocalAI's synchronous routes answer within that time, and the removal goes on."""
    assert api.deps.patience_s == 120


async def test_accepted_install_carries_the_pinned_policy_to_its_run(api: Api, settings: ControlSettings) -> None:
    node = await api.approved_node()
    answer = await api.http.post("/api/v1/operations", json={"kind": "install", "node": node["id"], "backend": "echo"})
    assert answer.status_code == 202
    client = await connect(settings)
    history = await client.get_workflow_handle(operation_workflow_id(node["id"], "echo")).fetch_history()
    given = history.events[0].workflow_execution_started_event_attributes.input.payloads[0].data
    assert dict(OperationInput.model_validate_json(given).policy) == POLICY
