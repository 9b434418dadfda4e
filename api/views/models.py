"""Views of running models, with LocalAI's field names."""

from nodesmith.api.views.shapes import views_of
from nodesmith.contracts.http.models import NodeModel, UnloadedNode, UnloadView
from nodesmith.domain.running_model import LoadedModel, Unloaded, UnloadResult


def model_view(model: LoadedModel) -> NodeModel:
    return NodeModel(
        id=f"{model.node_id}/{model.process_key}",
        node_id=model.node_id,
        model_name=model.name,
        replica_index=model.replica,
        address=model.address,
        backend_type=model.backend or None,
        created_at=model.reported_at,
        updated_at=model.reported_at,
        node_name=model.node_name,
        version=model.version,
    )


def unload_view(unloaded: Unloaded) -> UnloadView:
    nodes = views_of(UnloadedNode, unloaded.nodes)
    return UnloadView(message=_message(unloaded), model_name=unloaded.model, nodes=nodes)


def _message(unloaded: Unloaded) -> str:
    """The result as a message for people."""
    done, kept = unloaded.named(UnloadResult.UNLOADED), unloaded.named(UnloadResult.FAILED, UnloadResult.UNKNOWN)
    away = len(unloaded.named(UnloadResult.AWAY))
    said = f"unloaded on {_nodes(len(done))}" if done else "not unloaded" if kept else ""
    sentences = [
        f"{unloaded.model} is {said}." if said else f"Nothing to do: {unloaded.model} runs on no node that answers."
    ]
    if kept:
        sentences.append(f"{len(kept)} may still have it: {', '.join(kept)}.")
    if away:
        sentences.append(f"{_nodes(away)} could not be asked: no answer.")
    return " ".join(sentences)


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"
