"""A shelf changed as a plan changes it, without processes."""

import threading

from agent.plan import Plan, Step
from agent.shelf import Shelf
from contracts.messages import Command
from domain.operation import Kind

NEVER = threading.Event()


def staged(shelf: Shelf, command: Command, content: dict[str, str], digest: str) -> None:
    staging = shelf.stage(command.family, command.op_id)
    for name, text in content.items():
        (staging / name).parent.mkdir(exist_ok=True)
        (staging / name).write_text(text)
    shelf.seal(staging, command, digest, NEVER)


def carry_out(shelf: Shelf, command: Command) -> Plan:
    """All steps of the tree, and the clean-up after the end."""
    plan = shelf.draft(command)
    for step in plan.steps:
        if step is not Step.FREE_SPACE:
            shelf.take(step, plan)
    shelf.clean_up(plan, [])
    return plan


def roll_back(shelf: Shelf, family: str = "echo") -> Plan:
    return carry_out(shelf, Command(op_id="back", family=family, kind=Kind.ROLLBACK))


def remove(shelf: Shelf, family: str = "echo") -> Plan:
    return carry_out(shelf, Command(op_id="remove", family=family, kind=Kind.REMOVE))
