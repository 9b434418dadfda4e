"""Deployments: models that the scheduler keeps loaded, and calls of routers."""

from nodesmith.client.calls import Call, Mode, Resource, endpoint, segment
from nodesmith.contracts.http.deployments import (
    DeploymentDetail,
    DeploymentDiff,
    DeploymentRequest,
    DeploymentView,
    PlacementView,
    ScaleBody,
)
from nodesmith.contracts.http.replicas import (
    AcquireBody,
    DrainPreview,
    HolderView,
    LoadStatus,
    ReleaseBody,
    Released,
    ReplicaView,
)
from nodesmith.contracts.http.shared import Message, Page


class Deployments(Resource[Mode]):
    @endpoint
    def list(self) -> Call[Page[DeploymentView]]:
        """All deployments by name."""
        return Call("GET", "/deployments", Page[DeploymentView])

    @endpoint
    def get(self, name: str) -> Call[DeploymentDetail]:
        """One deployment with its replicas."""
        return Call("GET", _model(name), DeploymentDetail)

    @endpoint
    def set(self, name: str, request: DeploymentRequest) -> Call[DeploymentDetail]:
        """Deploy a model, or change it."""
        return Call("PUT", _model(name), DeploymentDetail, request)

    @endpoint
    def diff(self, name: str, request: DeploymentRequest) -> Call[DeploymentDiff]:
        """What `set` would change."""
        return Call("POST", f"{_model(name)}/diff", DeploymentDiff, request)

    @endpoint
    def scale(self, name: str, order: ScaleBody) -> Call[DeploymentDetail]:
        """Change how many replicas run."""
        return Call("POST", f"{_model(name)}/scale", DeploymentDetail, order)

    @endpoint
    def delete(self, name: str, *, reason: str = "") -> Call[Message]:
        """Remove a deployment; its replicas are unloaded when their calls have ended."""
        return Call("DELETE", _model(name), Message, query={"reason": reason})

    @endpoint
    def explain(self, name: str) -> Call[PlacementView]:
        """Where the next replica would go, and why nowhere else."""
        return Call("GET", f"{_model(name)}/explain", PlacementView)

    @endpoint
    def replicas(self, name: str) -> Call[Page[ReplicaView]]:
        """The replicas of a model."""
        return Call("GET", f"{_model(name)}/replicas", Page[ReplicaView])

    @endpoint
    def load_status(self, name: str) -> Call[LoadStatus]:
        """How far the load of a model is."""
        return Call("GET", f"{_model(name)}/load-status", LoadStatus)

    @endpoint
    def drain_preview(self, node: str) -> Call[DrainPreview]:
        """Which replicas would move if a node were drained, and where to."""
        return Call("GET", f"/nodes/{segment(node)}/drain-preview", DrainPreview)

    @endpoint
    def acquire(self, name: str, body: AcquireBody) -> Call[ReplicaView]:
        """Choose a replica for one call, and count the call."""
        return Call("POST", f"{_model(name)}/acquire", ReplicaView, body)

    @endpoint
    def release(self, name: str, body: ReleaseBody) -> Call[Released]:
        """End one call."""
        return Call("POST", f"{_model(name)}/release", Released, body)

    @endpoint
    def renew_holder(self, holder: str) -> Call[HolderView]:
        """Prove that a router lives."""
        return Call("PUT", f"/holders/{segment(holder)}", HolderView)

    @endpoint
    def delete_holder(self, holder: str) -> Call[HolderView]:
        """None of the router's calls is open any more."""
        return Call("DELETE", f"/holders/{segment(holder)}", HolderView)


def _model(name: str) -> str:
    return f"/deployments/{segment(name)}"
