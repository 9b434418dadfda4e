"""Nodes: list, approve, drain, resume, remove; their labels, overrides, inventory, models and logs."""

from collections.abc import Mapping, Sequence

from nodesmith.client.calls import Call, Mode, Resource, because, endpoint, paged, segment
from nodesmith.contracts.http.inventory import BackendSpread, NodeInventory
from nodesmith.contracts.http.models import LogsPage, ModelStopBody, ModelStopView, NodeModel, UnloadView
from nodesmith.contracts.http.nodes import LifecycleChanged, NodePage, NodeView
from nodesmith.contracts.http.operations import StopBody
from nodesmith.contracts.http.shared import Message, Page
from nodesmith.domain.node import DrainPolicy, NodeStatus

PATH = "/nodes"


def _node(node: str) -> str:
    return f"{PATH}/{segment(node)}"


def logs_call(
    node: str, backend: str, *, lines: int, cursor: int | None = None, wait_s: float | None = None
) -> Call[LogsPage]:
    query = {"lines": lines, "cursor": cursor, "wait_s": wait_s}
    return Call("GET", f"{_node(node)}/backends/{segment(backend)}/logs", LogsPage, query=query)


class Nodes(Resource[Mode]):
    def _list(
        self,
        *,
        status: Sequence[NodeStatus | str] = (),
        selector: str = "",
        backend: str = "",
        text: str = "",
        sort: str = "name",
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Call[NodePage]:
        """The nodes, sorted by name by default."""
        query = {"status": [str(each) for each in status] or None, "selector": selector, "backend": backend}
        return Call(
            "GET", PATH, NodePage, query={**query, "text": text, "sort": sort, "limit": limit, "cursor": cursor}
        )

    list = endpoint(_list)
    each = paged(_list)

    @endpoint
    def get(self, node: str) -> Call[NodeView]:
        """One node, by id or name."""
        return Call("GET", _node(node), NodeView)

    @endpoint
    def approve(self, node: str, *, reason: str = "") -> Call[NodeView]:
        """Admit a node that has registered."""
        return Call("POST", f"{_node(node)}/approve", NodeView, because(reason))

    @endpoint
    def drain(
        self, node: str, *, running: DrainPolicy | str = DrainPolicy.FINISH, reason: str = ""
    ) -> Call[LifecycleChanged]:
        """Give the node no new work; `running` says whether running operations finish or are cancelled."""
        query = {"operations": str(running)}
        return Call("POST", f"{_node(node)}/drain", LifecycleChanged, because(reason), query)

    @endpoint
    def resume(self, node: str, *, reason: str = "") -> Call[LifecycleChanged]:
        """End a drain."""
        return Call("POST", f"{_node(node)}/resume", LifecycleChanged, because(reason))

    @endpoint
    def delete(self, node: str, *, reason: str = "") -> Call[LifecycleChanged]:
        """Remove a node; its history stays."""
        return Call("DELETE", _node(node), LifecycleChanged, query={"reason": reason})

    @endpoint
    def reset_credential(self, node: str, *, reason: str = "") -> Call[LifecycleChanged]:
        """Release the name for another machine."""
        return Call("POST", f"{_node(node)}/reset-credential", LifecycleChanged, because(reason))

    @endpoint
    def labels(self, node: str) -> Call[dict[str, str]]:
        """All effective labels."""
        return Call("GET", f"{_node(node)}/labels", dict[str, str])

    @endpoint
    def replace_labels(self, node: str, labels: Mapping[str, str], *, reason: str = "") -> Call[dict[str, str]]:
        """Replace the admin's labels."""
        return Call("PUT", f"{_node(node)}/labels", dict[str, str], labels, {"reason": reason})

    @endpoint
    def update_labels(self, node: str, labels: Mapping[str, str], *, reason: str = "") -> Call[dict[str, str]]:
        """Add or change some of the admin's labels."""
        return Call("PATCH", f"{_node(node)}/labels", dict[str, str], labels, {"reason": reason})

    @endpoint
    def delete_label(self, node: str, key: str, *, reason: str = "") -> Call[dict[str, str]]:
        """Remove one of the admin's labels."""
        return Call("DELETE", f"{_node(node)}/labels/{segment(key)}", dict[str, str], query={"reason": reason})

    @endpoint
    def set_max_replicas(self, node: str, value: int, *, reason: str = "") -> Call[NodeView]:
        """Override the node's number of replicas of one model."""
        return Call("PUT", f"{_node(node)}/max-replicas", NodeView, {"value": value}, {"reason": reason})

    @endpoint
    def reset_max_replicas(self, node: str, *, reason: str = "") -> Call[NodeView]:
        return Call("DELETE", f"{_node(node)}/max-replicas", NodeView, query={"reason": reason})

    @endpoint
    def set_vram_budget(self, node: str, value: str, *, reason: str = "") -> Call[NodeView]:
        """Override the node's memory budget: "80%", "12GB", a number of bytes, or "" for none."""
        return Call("PUT", f"{_node(node)}/vram-budget", NodeView, {"value": value}, {"reason": reason})

    @endpoint
    def reset_vram_budget(self, node: str, *, reason: str = "") -> Call[NodeView]:
        return Call("DELETE", f"{_node(node)}/vram-budget", NodeView, query={"reason": reason})

    @endpoint
    def inventory(self, node: str) -> Call[NodeInventory]:
        """What was on the node's disk at the last refresh."""
        return Call("GET", f"{_node(node)}/inventory", NodeInventory)

    @endpoint
    def backends(self, node: str) -> Call[NodeInventory]:
        """What is on the node's disk now, read from the node itself."""
        return Call("GET", f"{_node(node)}/backends", NodeInventory)

    @endpoint
    def refresh_inventory(self, node: str) -> Call[NodeInventory]:
        """Read the node's disk now."""
        return Call("POST", f"{_node(node)}/inventory/refresh", NodeInventory)

    @endpoint
    def spread(self, *, backend: str = "", selector: str = "") -> Call[Page[BackendSpread]]:
        """Each backend of the fleet: which builds are installed, and which nodes differ from the majority."""
        return Call("GET", "/inventory", Page[BackendSpread], query={"backend": backend, "selector": selector})

    @endpoint
    def stop_backend(self, node: str, order: StopBody) -> Call[Message]:
        """Stop the processes of a backend, or all of them."""
        return Call("POST", f"{_node(node)}/backends/stop", Message, order)

    @endpoint
    def logs(
        self, node: str, backend: str, *, lines: int = 200, cursor: int | None = None, wait_s: float | None = None
    ) -> Call[LogsPage]:
        """The output of a backend: first the tail; then, with `cursor` and `wait_s`, new lines."""
        return logs_call(node, backend, lines=lines, cursor=cursor, wait_s=wait_s)


class Models(Resource[Mode]):
    @endpoint
    def list(self, *, node: str = "") -> Call[Page[NodeModel]]:
        """Running models of one node, or of all healthy nodes."""
        return Call("GET", f"{_node(node)}/models" if node else "/models", Page[NodeModel])

    @endpoint
    def unload(self, model: str, *, node: str, reason: str = "") -> Call[Message]:
        """Unload a model, all its replicas, on one node."""
        return Call("POST", f"{_node(node)}/models/unload", Message, {"model_name": model, **because(reason)})

    @endpoint
    def unload_everywhere(self, model: str, *, reason: str = "") -> Call[UnloadView]:
        """Unload a model on every node that runs it; the answer names the nodes that failed."""
        return Call("POST", "/models/unload", UnloadView, {"model_name": model, **because(reason)})

    @endpoint
    def stop(self, node: str, order: ModelStopBody) -> Call[ModelStopView]:
        """Stop one process of a model; answers after it has ended."""
        return Call("POST", f"{_node(node)}/models/stop", ModelStopView, order)

    @endpoint
    def delete(self, model: str, *, node: str, reason: str = "") -> Call[Message]:
        """Unload a model and delete its files from the node."""
        return Call("POST", f"{_node(node)}/models/delete", Message, {"model_name": model, **because(reason)})
