"""Deployments as people write them: options of `models deploy`, and YAML files of `models apply` and `models diff`."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import yaml

from nodesmith.contracts.http.deployments import DeploymentRequest
from nodesmith.domain.deployment import parse_replicas
from nodesmith.domain.errors import InvalidRequest

_RENAMED = {"where": "selector", "env": "environment", "args": "arguments"}


def file_of(text: str) -> dict[str, Any]:
    """Read `URI#sha256=HEX&name=NAME&size=BYTES`; all after the # is optional for the reader, not for the API."""
    uri, _, facts = text.partition("#")
    said = {key: values[-1] for key, values in parse_qs(facts).items()}
    unknown = said.keys() - {"sha256", "name", "size"}
    if unknown or (facts and not said):
        raise InvalidRequest(f"--file {text[:80]}: write URI#sha256=HEX, and if needed &name=NAME&size=BYTES.")
    return {"uri": uri, **said}


def documents(path: Path) -> list[tuple[str, DeploymentRequest]]:
    """Read the deployments of a YAML file: one per document, each with its `name`."""
    try:
        found = [each for each in yaml.safe_load_all(path.read_text()) if each is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}") from None
    if not found:
        raise InvalidRequest(f"{path} has no deployment.")
    return [_document(each, f"{path}, document {number}") for number, each in enumerate(found, 1)]


def _document(found: Any, where: str) -> tuple[str, DeploymentRequest]:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise InvalidRequest(f"{where}: a deployment is a mapping with a name.")
    fields = {_RENAMED.get(str(key), str(key)): value for key, value in found.items() if key != "name"}
    if "replicas" in fields:
        fields |= dict(zip(("min_replicas", "max_replicas"), parse_replicas(str(fields.pop("replicas"))), strict=True))
    unknown = fields.keys() - DeploymentRequest.model_fields.keys()
    if unknown:
        raise InvalidRequest(f"{where}: unknown fields {', '.join(sorted(unknown))}.")
    if "files" in fields and isinstance(fields["files"], list):
        fields["files"] = [file_of(each) if isinstance(each, str) else each for each in fields["files"]]
    try:
        return found["name"], DeploymentRequest.model_validate(fields)
    except ValueError as error:
        raise InvalidRequest(f"{where}: {error}") from None
