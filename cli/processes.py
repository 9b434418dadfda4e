"""`nodesmith api`, `worker` and `agent`: one process each, configured by the environment."""

import importlib

import typer

from cli.failures import CommandFailed


def register(app: typer.Typer) -> None:
    app.command("api")(api)
    app.command("worker")(worker)
    app.command("agent")(agent)


def api() -> None:
    """Run the HTTP API, until SIGTERM. Any number of them serve the same fleet.

    Settings are NODESMITH_* variables: docs/operations.md lists them.
    """
    run("api.main")


def worker() -> None:
    """Run a Temporal worker, until SIGTERM. Any number of them share the work.

    Settings are NODESMITH_* variables: docs/operations.md lists them.
    """
    run("workers.main")


def agent() -> None:
    """Run the agent of this node, until SIGTERM. One for each node.

    Settings are NODESMITH_AGENT_* variables; NODESMITH_AGENT_URL and NODESMITH_AGENT_TOKEN_FILE are needed to register.
    """
    run("agent.main")


def run(module: str) -> None:
    """Import the process and become it; the control plane's libraries are an extra of the installation."""
    try:
        process = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CommandFailed(
            f"This installation lacks {error.name}, which this process needs.",
            "Install Nodesmith with the extra `control`; a node needs only `nodesmith agent`.",
            code="not_installed",
        ) from error
    process.main()
