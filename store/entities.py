"""Converts rows into entities of the domain."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from nodesmith.domain.budget import parse as parse_budget
from nodesmith.domain.installed import InstalledBackend
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import Node, NodeConfinement, NodeStatus, NodeType, Protocol
from nodesmith.domain.operation import Gauge, Operation, Phase, Reason, State, StateChange
from nodesmith.store.tables.core import NodeRow, OperationEventRow, OperationRow

_COLUMNS = tuple(NodeRow.__table__.columns.keys())
_CONFINEMENT = frozenset(NodeConfinement.__dataclass_fields__)
_INSTALLED = frozenset(InstalledBackend.__dataclass_fields__)


def node_of(row: NodeRow, status: str, open_operations: int, labels: dict[str, str] | None, held: list[int]) -> Node:
    derived = {"status": status, "open_operations": open_operations, "labels": labels, "held": held}
    return node_of_columns({name: getattr(row, name) for name in _COLUMNS} | derived)


def node_of_columns(row: Mapping[str, Any]) -> Node:
    """The row stores the reported VRAM; the node has what the budget leaves. Overrides of an admin win."""
    override, resources = row["vram_budget_override"], row["resources"]
    budget = row["vram_budget"] if override is None else override
    limit, total_vram = parse_budget(budget), resources.get("total_vram")
    return Node(
        id=row["id"],
        name=row["name"],
        node_type=NodeType(row["node_type"]),
        protocol=Protocol(row["protocol"]),
        address=row["address"],
        http_address=row["http_address"],
        max_replicas_per_model=row["max_replicas_override"] or row["max_replicas_per_model"],
        max_replicas_per_model_manually_set=row["max_replicas_override"] is not None,
        vram_budget=budget,
        vram_budget_bytes=limit.ceiling(total_vram),
        vram_budget_manually_set=override is not None,
        total_vram=total_vram,
        available_vram=limit.available(total_vram, resources.get("available_vram")),
        total_ram=resources.get("total_ram"),
        available_ram=resources.get("available_ram"),
        total_disk=resources.get("total_disk"),
        available_disk=resources.get("available_disk"),
        gpu_vendor=resources.get("gpu_vendor"),
        gpu_compute_capability=resources.get("gpu_compute_capability"),
        capability=resources.get("capability"),
        confinement=_confinement(resources.get("confinement")),
        resources_at=row["resources_at"],
        status=NodeStatus(row["status"]),
        approved_at=row["approved_at"],
        drained_at=row["drained_at"],
        leaving_at=row["leaving_at"],
        left_at=row["left_at"],
        unreachable_since=row["unreachable_since"],
        rival_seen_at=row["rival_seen_at"],
        last_heartbeat=row["last_heartbeat"],
        boot_id=row["boot_id"],
        boot_at=row["boot_at"],
        agent_version=row["agent_version"],
        trust_version=row["trust_version"],
        labels=row["labels"] or {},
        open_operations=row["open_operations"],
        model_count=row["held"][0],
        in_flight_count=row["held"][1],
        reserved_memory=row["held"][2],
        reserved_vram=row["held"][3] if total_vram else 0,
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _confinement(reported: Mapping[str, Any] | None) -> NodeConfinement | None:
    if reported is None:
        return None
    return NodeConfinement(**{name: value for name, value in reported.items() if name in _CONFINEMENT})


def operation_of(row: OperationRow, read_at: datetime, timeline: Sequence[StateChange] = ()) -> Operation:
    """Fields of the request are read without validation: it was validated when it was written."""
    request, wanted = row.request, row.request["wanted"]
    return Operation(
        op_id=row.op_id,
        kind=Kind(row.kind),
        node_id=row.node_id,
        node_name=row.node_name,
        backend=row.backend,
        family=row.family,
        version=wanted.get("version", ""),
        uri=wanted.get("uri", ""),
        sha256=wanted.get("sha256", ""),
        force=wanted.get("force", False),
        verified=wanted.get("verified", ""),
        state=State(row.state),
        reason=_reason(row.reason),
        detail=row.detail,
        until=row.until,
        attempt=row.attempt,
        gauge=gauge_of(row),
        before=_installed(row.before),
        after=_installed(row.after),
        changed=row.changed,
        bytes_fetched=row.bytes_fetched,
        bytes_reused=row.bytes_reused,
        requested_by=request.get("requested_by", ""),
        note=request.get("note", ""),
        cancelled_by=row.cancelled_by,
        batch_id=row.batch_id,
        retry_of=request.get("retry_of"),
        created_at=row.created_at,
        dispatched_at=row.dispatched_at,
        ended_at=row.ended_at,
        dismissed_at=row.dismissed_at,
        workflow_id=row.workflow_id,
        run_id=row.run_id,
        changed_at=row.at,
        read_at=read_at,
        timeline=timeline,
    )


def state_change_of(row: OperationEventRow) -> StateChange:
    return StateChange(
        id=row.id,
        op_id=row.op_id,
        node_id=row.node_id,
        node_name=row.node_name,
        backend=row.backend,
        kind=Kind(row.kind),
        batch_id=row.batch_id,
        state=State(row.state),
        reason=_reason(row.reason),
        detail=row.detail,
        until=row.until,
        attempt=row.attempt,
        at=row.at,
    )


def gauge_of(row: OperationRow) -> Gauge:
    return Gauge(
        phase=_phase(row.phase),
        bytes_done=row.bytes_done,
        bytes_total=row.bytes_total,
        percentage=row.percentage,
        rate=row.rate,
        eta_s=row.eta_s,
        at=row.progressed_at,
    )


def _reason(word: str | None) -> Reason | None:
    return Reason(word) if word else None


def _phase(word: str | None) -> Phase | None:
    phase = Phase(word) if word else None
    return None if phase is Phase.UNKNOWN else phase


def _installed(stored: dict[str, Any] | None) -> InstalledBackend | None:
    if not stored:
        return None
    fields = {name: value for name, value in stored.items() if name in _INSTALLED}
    if fields.get("installed_at"):
        fields["installed_at"] = datetime.fromisoformat(fields["installed_at"])
    return InstalledBackend(**fields)
