"""The rules about nodes and the tests that prove them, as a page: `make reference`."""

import sys

from tests.breaks import SEEN_FAILING
from tests.rule_tables import page as table
from tests.rule_tables import proofs

__all__ = ["NOT_DONE", "RULES", "SUPERSEDED", "page", "proofs"]

RULES = {
    "R1": "A node has an id, a unique name, and facts within limits.",
    "R2": "The status of a node is pending, healthy, unhealthy, draining or offline.",
    "R5": "A label key has one value; keys and values have limits.",
    "R8": "A process that keeps a copy of a node's replicas is told when the node is removed.",
    "R9": "The database deletes everything that belongs to a removed node.",
    "R10": "A listener is told about replicas that are removed.",
    "R11": "One function tells the listeners.",
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
    "R27": "A command that nobody at the node answers makes the node unhealthy, and deletes nothing.",
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
    "R75": "A change that could make room ends the rest of every model that found no node.",
    "R76": "The list of nodes has the number of models and of open calls.",
    "R77": "Some labels follow from the facts of a node.",
    "R86": "A node that becomes available or changes ends the rest of models that found no node.",
    "R87": "So does everything else that could make room: a resume, a recovery, a changed rule, a removed replica.",
    "R88": "Listeners are told after the commit, and about exactly what was removed.",
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
    "H8": "A removed node is told, and stops.",
    "H10": "Nothing of a removed node is left in the database.",
    "H18": "A VRAM budget limits the memory in use, not the free memory.",
    "H28": "The removal of a backend from a node is durable.",
    "H35": "Replacing labels keeps the automatic labels.",
    "H37": "A node that lost its GPU shows it in its labels.",
    "H38": "A reservation counts until a reading of the node shows it.",
    "H39": "No counter lives in the memory of a process.",
    "H44": "An error in a transaction undoes the whole transaction.",
    "R3": "A replica has one row, unique by node, model and number.",
    "R4": "What to load for a model outlives every replica.",
    "R6": "A rule says how many replicas of a model run and where; without a rule it is loaded on demand.",
    "R19": "A replica goes to a healthy node with enough free memory.",
    "R20": "Of placements at the same time exactly as many succeed as fit.",
    "R21": "A reservation ends with its replica, once.",
    "R31": "A replica keeps its id while its state changes.",
    "R32": "The specification belongs to the model, and a replica names its revision.",
    "R33": "The last specification of a model counts.",
    "R34": "The specification can be read without any replica.",
    "R35": "The end of one replica leaves the others.",
    "R36": "The removal of a model ends all its replicas.",
    "R37": "The replica with the fewest calls gets the next one.",
    "R38": "A call is counted in the transaction that chooses its replica; ties go round.",
    "R39": "Every replica is a candidate of its own.",
    "R40": "A call makes its replica the most recently used.",
    "R41": "A replica can be read.",
    "R42": "A replica in any state occupies its slot.",
    "R43": "The lowest free number is taken first.",
    "R44": "Of nodes that fit, the least loaded is preferred.",
    "R45": "An idle node is preferred to one with models.",
    "R46": "A call counts at once, on one replica.",
    "R47": "A repeated end of a call changes nothing.",
    "R48": "All replicas of a node can be read.",
    "R49": "Only loaded replicas on nodes that answer get calls.",
    "R50": "A model without such a replica gets none.",
    "R51": "The least recently used idle replica of a node is evicted first.",
    "R52": "Only idle replicas are evicted.",
    "R59": "Memory, among the nodes of a selector.",
    "R60": "Idle nodes, among the nodes of a selector.",
    "R61": "The least loaded node, among the nodes of a selector.",
    "R62": "A rule can be set; routing fields that are left out stay.",
    "R63": "A rule can be read, or is not there.",
    "R64": "All rules can be read, by model.",
    "R65": "One replica on each matching node, if the rule says so.",
    "R66": "A rule can be deleted; a missing one is no error.",
    "R67": "Replicas on nodes that do not answer do not count.",
    "R68": "A node takes replicas of a model up to its limit.",
    "R69": "A minimum that cannot be met is not tried for ever.",
    "R70": "Ticks without a place are counted.",
    "R71": "After three of them the model rests for five minutes.",
    "R72": "A placed replica ends the rest of its model.",
    "R93": "The selector is applied before anything else.",
    "R94": "The highest number goes first.",
    "H9": "Two replicas never have one slot.",
    "H11": "A lost node does not satisfy a minimum.",
    "H12": "Calls are counted by replica, not by node.",
    "H13": "Each replica is unloaded once.",
    "H15": "Routers learn of an eviction.",
    "H16": "An eviction frees a node that may run the model, and spares protected models.",
    "H17": "A failed load frees its memory.",
    "H19": "A changed budget counts at once.",
    "H36": "A changed rule ends the rest of its model.",
}
"""Number in the docstrings of tests -> the rule. R: what a registry of nodes does; H: weaknesses to avoid."""

NOT_DONE: dict[str, str] = {}
"""Rules for which no test can fail yet, each with the reason."""

SUPERSEDED = ("R9", "R17", "R28", "R67", "R87")
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
