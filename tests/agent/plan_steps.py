"""Applies the steps of a plan to installed backends, without processes."""

import threading

from nodesmith.agent.disk.installed_backends import InstalledBackends
from nodesmith.agent.operations.change_plan import ChangePlan, Step
from nodesmith.contracts.nats.messages import Command
from nodesmith.domain.kinds import Kind

NEVER = threading.Event()


def staged(backends: InstalledBackends, command: Command, content: dict[str, str], digest: str) -> None:
    staging = backends.stage(command.family, command.op_id)
    for name, text in content.items():
        (staging / name).parent.mkdir(exist_ok=True)
        (staging / name).write_text(text)
    backends.seal(staging, command, digest, NEVER)


def carry_out(backends: InstalledBackends, command: Command) -> ChangePlan:
    """Apply all steps that change the tree, then clean up."""
    plan = backends.draft(command)
    for step in plan.steps:
        if step is not Step.FREE_SPACE:
            backends.apply_step(step, plan)
    backends.clean_up(plan, [])
    return plan


def roll_back(backends: InstalledBackends, family: str = "echo") -> ChangePlan:
    return carry_out(backends, Command(op_id="back", family=family, kind=Kind.ROLLBACK))


def remove(backends: InstalledBackends, family: str = "echo") -> ChangePlan:
    return carry_out(backends, Command(op_id="remove", family=family, kind=Kind.REMOVE))
