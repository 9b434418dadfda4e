"""The rules about nodes and the tests that prove them, as a page: `make reference`."""

import sys

from tests.mutations.all_breaks import SEEN_FAILING
from tests.rule_tables import page as table
from tests.rule_tables import proofs

__all__ = ["NOT_DONE", "RULES", "SUPERSEDED", "page", "proofs"]

RULES = {
    "R1": "A node has an id, a unique name, and facts within limits.",
    "R2": "The status of a node is pending, healthy, unhealthy, draining or offline.",
    "R5": "A label key has one value; keys and values have limits.",
    "R8": "A process that keeps a copy of a node's replicas is notified when the node is removed.",
    "R9": "The database deletes everything that belongs to a removed node.",
    "R10": "A listener is notified of replicas that are removed.",
    "R11": "One function notifies the listeners.",
    "R12": "The registry knows which models a removed node had.",
    "R13": "Processes that start at the same time migrate the database once.",
    "R14": "A registration proves the identity of a node, waits for approval, and keeps what an admin decided.",
    "R15": "A node has a credential of its own, and an admin can take it away.",
    "R16": "An approval is given once, to a node that waits for it.",
    "R17": "No request writes a status; a resume does not approve a node.",
    "R18": "A node that leaves keeps its row and its approval.",
    "R22": "The removal of a node removes everything that belongs to it; an unknown node is an error.",
    "R23": "A heartbeat updates the time and the figures that it carries, and no status.",
    "R24": "The list of nodes is sorted by name and has every node once.",
    "R25": "A node can be read by its id.",
    "R26": "A node can be read by its name.",
    "R27": "A command without a subscriber at the node makes the node unhealthy, and deletes nothing.",
    "R28": 'The status "healthy" is derived from facts and never written.',
    "R29": "A draining node gets no new work, and running work continues.",
    "R30": "Offline is derived from silence during the time in which the control plane listened.",
    "R53": "An admin can set a label.",
    "R54": "An admin can replace all labels that admins have set.",
    "R55": "An admin can remove a label.",
    "R56": "The labels of one node can be read.",
    "R57": "The labels of all nodes can be read.",
    "R58": "A selector chooses nodes by their labels.",
    "R73": "An admin can limit the replicas of a model on a node.",
    "R74": "An admin can remove that limit, and the node's own value counts again.",
    "R75": "An admin can end the cool-down of models that find no node.",
    "R76": "The list of nodes has the number of models and of requests in flight.",
    "R77": "Some labels follow from the facts of a node.",
    "R86": "A node that becomes available ends a cool-down.",
    "R87": "Other changes do not end a cool-down.",
    "R88": "Listeners are notified after the commit, of exactly the removed replicas.",
    "R89": "Counters are never negative and never overflow.",
    "R90": "An admin's decision survives restarts of the node.",
    "R91": "Nodes that run no backends get no backend operations.",
    "R92": "Only healthy nodes get routes and placements.",
    "H1": "No request avoids the approval of a node.",
    "H2": "A node that returns is healthy without the help of a monitor.",
    "H3": "No node approves itself, and no node acts for another node.",
    "H4": "A drain survives a registration.",
    "H5": "A node that left stays offline until it registers again.",
    "H6": "A drain stops nothing that runs.",
    "H7": "The renewal of a credential is not a restart.",
    "H8": "A removed node gets a stop order, and stops.",
    "H10": "Nothing of a removed node is left in the database.",
    "H18": "A VRAM budget limits the memory in use, not the free memory.",
    "H28": "The removal of a backend from a node is durable.",
    "H35": "Replacing labels keeps the automatic labels.",
    "H37": "A node that lost its GPU shows it in its labels.",
    "H38": "A reservation ends with the registration of its node.",
    "H39": "No counter lives in the memory of a process.",
    "H44": "An error in a transaction undoes the whole transaction.",
}
"""Number in the docstrings of tests -> the rule. R: what a registry of nodes does; H: weaknesses to avoid."""

_REPLICAS = "Nodesmith keeps no replicas of models yet, so no process has to be notified that they are gone"
_PLACEMENT = "Nodesmith places no models yet, so nothing is cooled down, reserved or routed"
NOT_DONE = {
    **dict.fromkeys(("R8", "R10", "R11", "R12", "R88"), _REPLICAS),
    **dict.fromkeys(("R75", "R86", "R87", "R89", "R92", "H38"), _PLACEMENT),
    "R76": "the list carries labels; its counts of models and of requests in flight are always 0",
}
"""Rules for which no test can fail yet, each with the reason."""

SUPERSEDED = ("R9", "R17", "R28")
"""Rules that Nodesmith keeps in another way than LocalAI: the sentence says what holds here."""

_INTRODUCTION = """\
# Rules about nodes

Generated from the docstrings of the tests by `make reference`. A test fails when this page is out of date. The last
column says how the code was broken to see the tests fail (`make breaks`).
"""


def page() -> str:
    return table(_INTRODUCTION, RULES, NOT_DONE, SEEN_FAILING, missing="not done yet")


if __name__ == "__main__":
    sys.stdout.write(page())
