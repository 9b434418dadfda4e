"""The table from the rules about nodes to the tests that prove them: `python -m tests.rules > docs/rules-nodes.md`."""

import sys

from tests.rule_tables import page as table
from tests.rule_tables import proofs

__all__ = ["RULES", "page", "proofs"]

RULES = {
    "R1": "a node has an id, a unique name, and facts with limits",
    "R2": "the statuses are pending, healthy, unhealthy, draining, offline",
    "R5": "one value for each key of a label, within limits",
    "R8": "superseded: no process keeps a copy of the registry that would have to be told",
    "R9": "superseded by H10: the database cascades",
    "R10": "superseded: see R8",
    "R11": "superseded: see R8",
    "R12": "superseded: see R8",
    "R13": "simultaneous starts migrate once",
    "R14": "registration: identity, approval, what is kept and what is taken over",
    "R15": "the credential of a node, and taking it away",
    "R16": "an approval is given once, to a node that waits for it",
    "R17": "superseded by H3: no status is ever written",
    "R18": "a node that is gone keeps its row and its approval",
    "R22": "removing a node removes what hangs on it; unknown ones are told",
    "R23": "a heartbeat moves the time and the figures it carries, never a status",
    "R24": "all nodes, by name",
    "R25": "one node by id",
    "R26": "one node by name",
    "R27": "nobody at a node is evidence, and deletes nothing",
    "R28": "superseded by H3: healthy is what follows from the facts",
    "R29": "draining: no new work, what runs goes on",
    "R30": "silence is derived, from what was listened to",
    "R53": "setting a label",
    "R54": "replacing labels",
    "R55": "removing a label",
    "R56": "labels of a node",
    "R57": "labels of all nodes",
    "R58": "selecting nodes",
    "R73": "an admin's cap of replicas",
    "R74": "handing the cap back",
    "R75": "superseded: there is no cool-down",
    "R76": "the list carries counts and labels",
    "R77": "labels that follow from the facts",
    "R86": "superseded: there is no cool-down; what waits is woken by the node",
    "R87": "superseded: see R86",
    "R88": "superseded: see R8; nothing happens by halves",
    "R89": "tests of admission are inside the UPDATE",
    "R90": "an admin's decision outlives the node's restarts",
    "R91": "nodes that run no backends get no backend work",
    "R92": "who gets work, and who does not",
    "H1": "no way around the approval",
    "H2": "recovery needs no monitor",
    "H3": "nobody approves itself, nobody acts for another",
    "H4": "a drain survives a registration",
    "H5": "a node that left does not flap back",
    "H6": "a drain cuts nothing that runs",
    "H7": "a renewal is not a restart",
    "H8": "a removed node is told, and stops",
    "H10": "nothing of a removed node is left over",
    "H28": "removing a backend from a node is durable",
    "H35": "replacing labels does not lose the automatic ones",
    "H37": "a node that lost its GPU shows it",
    "H38": "superseded: nothing is reserved",
    "H39": "nothing is counted in a process",
    "H44": "an error inside a transaction undoes all of it",
}
"""The numbers that concern nodes, each in a few words."""

_INTRODUCTION = """\
# The rules about nodes, and the tests that prove them

Generated from the docstrings of the tests by `python -m tests.rules > docs/rules-nodes.md`; a test fails when it is
old. R: what a registry of nodes has to do. H: weaknesses of others that must not exist here. *Superseded*: the test
shows what takes the rule's place. Replicas, reservations and placement of models are not part of Nodesmith yet.
"""


def page() -> str:
    return table(_INTRODUCTION, RULES)


if __name__ == "__main__":
    sys.stdout.write(page())
