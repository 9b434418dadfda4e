"""The table from the rules about nodes to the tests that prove them: `python -m tests.rules > docs/rules-nodes.md`."""

import sys

from tests.breaks import SEEN_FAILING
from tests.rule_tables import page as table
from tests.rule_tables import proofs

__all__ = ["NOT_DONE", "RULES", "SUPERSEDED", "page", "proofs"]

RULES = {
    "R1": "a node has an id, a unique name, and facts with limits",
    "R2": "the statuses are pending, healthy, unhealthy, draining, offline",
    "R5": "one value for each key of a label, within limits",
    "R8": "whoever keeps a copy of replicas is told when they go",
    "R9": "superseded by H10: the database cascades",
    "R10": "a listener for replicas that go",
    "R11": "the one place that tells it",
    "R12": "which models a node had",
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
    "R75": "clearing the cool-down of models that find no place",
    "R76": "the list carries counts of models and of requests in flight",
    "R77": "labels that follow from the facts",
    "R86": "what ends a cool-down",
    "R87": "what does not end a cool-down",
    "R88": "the listener is told after the commit, of exactly what went",
    "R89": "counters never go negative and never wrap",
    "R90": "an admin's decision outlives the node's restarts",
    "R91": "nodes that run no backends get no backend work",
    "R92": "only healthy nodes get routes and placements",
    "H1": "no way around the approval",
    "H2": "recovery needs no monitor",
    "H3": "nobody approves itself, nobody acts for another",
    "H4": "a drain survives a registration",
    "H5": "a node that left does not flap back",
    "H6": "a drain cuts nothing that runs",
    "H7": "a renewal is not a restart",
    "H8": "a removed node is told, and stops",
    "H10": "nothing of a removed node is left over",
    "H18": "a budget limits what is in use, not what is free",
    "H28": "removing a backend from a node is durable",
    "H35": "replacing labels does not lose the automatic ones",
    "H37": "a node that lost its GPU shows it",
    "H38": "a reservation does not outlive a registration",
    "H39": "nothing is counted in a process",
    "H44": "an error inside a transaction undoes all of it",
}
"""The numbers that concern nodes, each in a few words."""

_REPLICAS = "Nodesmith keeps no replicas of models yet, so nobody has to be told that they are gone"
_PLACEMENT = "Nodesmith places no models yet, so nothing is cooled down, reserved or routed"
NOT_DONE = {
    **dict.fromkeys(("R8", "R10", "R11", "R12", "R88"), _REPLICAS),
    **dict.fromkeys(("R75", "R86", "R87", "R89", "R92", "H38"), _PLACEMENT),
    "R76": "the list carries labels; its counts of models and of requests in flight are always 0",
}
"""Rules for which no test can fail yet, each with the reason."""

SUPERSEDED = tuple(number for number, rule in RULES.items() if rule.startswith("superseded"))

_INTRODUCTION = """\
# The rules about nodes, and the tests that prove them

Generated from the docstrings of the tests by `python -m tests.rules > docs/rules-nodes.md`; a test fails when it is
old. R: what a registry of nodes has to do. H: weaknesses of others that must not exist here. *Superseded*: the test
shows what takes the rule's place, and was seen failing. *Not done*: no test can fail for this rule yet. *Seen failing
with*: what was broken when the tests of that rule failed; `python -m tests.breaking R23` breaks it again, on a copy.
"""


def page() -> str:
    return table(_INTRODUCTION, RULES, NOT_DONE, SEEN_FAILING, missing="not done")


if __name__ == "__main__":
    sys.stdout.write(page())
