"""Every default of a batch is pinned."""

from nodesmith.contracts.http.batches import BatchRequest, BatchRetry
from nodesmith.contracts.nats.messages import UpgradePolicy
from nodesmith.contracts.temporal.batches import BatchInput
from nodesmith.contracts.temporal.operations import Intent, Limits, Policy
from nodesmith.domain.batch import RetrySelect
from nodesmith.domain.kinds import Kind


def test_defaults_of_a_batch_request() -> None:
    assert dict(BatchRequest()) == {
        "backend": "",
        "uri": "",
        "name": "",
        "alias": "",
        "version": "",
        "sha256": "",
        "force": False,
        "reason": "",
        "on_drained": False,
        "start": False,
        "upgrade_policy": UpgradePolicy.RESTART,
        "wait_for_node_s": None,
        "deadline_s": None,
        "max_attempts": None,
        "kind": Kind.INSTALL,
        "nodes": [],
        "selector": "",
        "everywhere": False,
        "max_parallel": 20,
        "max_failures": None,
        "count_attempts": False,
    }


def test_defaults_of_a_batch_run() -> None:
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in BatchInput.model_fields.items()
        if not field.is_required()
    }
    assert defaults == {
        "builds": {},
        "left_out": (),
        "max_parallel": 20,
        "max_failures": None,
        "count_attempts": False,
        "policy": Policy(),
        "limits": Limits(),
        "requested_by": "",
        "note": "",
        "retry_of": None,
        "on_drained": False,
        "carried": None,
    }
    assert dict(Limits()) == {"wait_for_node_s": None, "deadline_s": None, "max_attempts": None}
    assert Intent(backend="", family="").force is False


def test_a_retry_of_a_batch_takes_the_failed_members_by_default() -> None:
    assert dict(BatchRetry()) == {"reason": "", "select": RetrySelect.FAILED}
