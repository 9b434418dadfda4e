"""The rules about operations and the tests that prove them, as a page: `make reference`."""

import sys
from collections.abc import Iterator

from tests.mutations.all_breaks import BREAKS, SEEN_FAILING
from tests.rule_tables import located
from tests.rule_tables import page as table

RULES = {
    "S1": "An install is answered with 202 at once; the API never waits for the node.",
    "S2": "A request with neither backend nor uri is a 400.",
    "S3": "A request with one target goes to one node; a request without a target goes to all nodes.",
    "S4": "One backend on two nodes at the same time is two jobs, and none is lost.",
    "S5": "The lock is a workflow id of node and family; one function makes it and no code parses it.",
    "S6": "The list has the node in a field of its own, and the plain name of the backend.",
    "S7": "The error text of a worker reaches the operation, and a retry goes only to the nodes that failed.",
    "S8": "Work continues although no client reads its state.",
    "S9": "All nodes of a batch may work at the same time, and no fixed time ends the batch.",
    "S10": "A cancelled operation is not shown as a success.",
    "S11": "A cancel ends an operation that still waits.",
    "S12": "An install by uri uses the given name, else the name in the uri, as its key.",
    "S13": "An operation without a run gets an end by itself.",
    "S14": "A duplicate request joins the same operation.",
    "S15": "A succeeded operation leaves the live list by itself.",
    "S16": "Every replica shows the same list.",
    "S17": "A cancelled operation leaves the live list.",
    "S18": "A failed operation stays on the live list until somebody dismisses it.",
    "S19": "An operation that is still installing stays on the live list.",
    "S20": "A queued operation is listed as waiting.",
    "S21": "Many readers and writers at the same time miss no event.",
    "S22": "An upgrade streams its progress as an install does.",
    "S23": "The control plane subscribes before it sends a command.",
    "S24": "All kinds of operations report progress on one subject.",
    "S25": "A second attempt reports progress as the first one did.",
    "S26": "A drain ends operations that wait for the node.",
    "S27": "An operation waits for an absent node.",
    "S28": "An operation waits for a node that cannot be reached.",
    "S29": "No repair ends an operation that runs.",
    "S30": "A cancel survives a restart of the worker.",
    "S31": "The death of any process leaves no operation without a run.",
    "S32": "The console does not show a failed operation as running.",
    "S33": "The console updates version and badge by itself.",
    "S34": "Each corrected bug has a test that failed first.",
    "S35": "An install of what is installed changes nothing.",
    "S36": "An upgrade has its own subject, and the backend serves meanwhile.",
    "S37": "A LocalAI worker without the upgrade subject gets an install with force.",
    "S38": "An operation without an answer in time is still installing, and has not failed.",
    "S39": "A timeout of the bus is recognised, whatever its type.",
    "S40": "Progress is read if there is some; a worker without progress is fine.",
    "S41": "Malformed and stale progress is dropped, and a slow reader delays no other reader.",
    "S42": "A model is unloaded on every node that has it; nodes that fail are named.",
    "S43": "A stop of one backend, or of all, is sent and not waited for.",
    "S44": "Direct requests to nodes have time limits.",
    "S45": "After a timeout the workflow attaches to the node again, and starts no second attempt.",
    "S46": "Nodes that run no backends are left out, and named.",
    "S47": "A command without a subscriber at the node is evidence that the node is unreachable.",
    "S48": "After ten failed attempts an operation is a dead letter, which is kept and can be retried.",
    "S49": "A request for a node that may not get work is refused at admission.",
    "S50": "Names of earlier features are listed.",
    "S51": "Nodes are visited in parallel, and pending nodes are left out.",
    "S52": "An operation for an absent node is queued, and no error.",
    "S53": "Each node of a batch shows success, still running, or an error.",
    "S54": "Only final failures make the error of a batch, each with the name of its node.",
    "S55": "An upgrade goes only to nodes that have the backend.",
    "S56": "The nodes are asked for their lists, and absent nodes are noted.",
    "S57": "What the inventory shows as installed is not installed again.",
    "S58": "The status has a line for each node.",
    "S59": "The live list has fixed fields and a fixed order.",
    "S60": "A queued operation can always be cancelled; a running removal never.",
    "S61": "A crash in one handler fails only its own operation.",
    "S62": "A recorded end is never overwritten.",
    "S63": "A build for certain hardware never goes to all nodes.",
    "H20": "A batch with no nodes is no success.",
    "H21": '"Still installing" is visible, and becomes the real outcome.',
    "H22": "No timer of a client makes an operation fail.",
    "H23": "Nodes of a batch work in parallel.",
    "H24": "The same backend on another node is no duplicate.",
    "H25": "Uri, name and alias survive retries.",
    "H26": "A timeout is no attempt.",
    "H27": "A slow node delays no other node.",
    "H30": "A forced install installs again.",
    "H31": "The server recognises duplicates.",
    "H33": "Old operations are deleted.",
    "H34": "Pending work is visible.",
    "H40": "An upgrade interrupts no request, and starts again what ran.",
    "H41": "Every route has the guard for hardware-specific builds.",
    "H42": "An install starts no process unless it is asked to.",
    "H43": "There is one place that knows the state of an operation.",
    "G1": "A cancel reaches the node.",
    "G2": "A cancel waits for no other work.",
    "G3": "A cancelled operation never starts again.",
    "G4": "An operation survives the death of any process.",
    "G5": "An operation waits for an absent node.",
    "G6": "A retry has the uri, the name and the alias of the original.",
    "G7": "A refused removal is a failure.",
    "G8": '"Still installing" is never counted as an attempt.',
    "G9": "A retry reports progress.",
    "G10": "Duplicates are recognised by node, backend and intent, and are not shown as a success.",
    "G11": "No lock is shared by the retries of all nodes.",
    "G12": "A batch has a limit of parallel nodes, a limit of failures, a selector and a pause.",
}
"""Number in the docstrings of tests -> the rule. S: what operations do; H and G: weaknesses and gaps to avoid."""

NOT_SHOWN = {
    "S32": "part of the console",
    "S33": "part of the console",
    "S34": "a way to work, not a behaviour",
    "S50": "a list of names, no behaviour",
}

INTRODUCTION = """\
# Rules about operations

Generated from the docstrings of the tests by `make reference`. A test fails when this page is out of date, or when a
rule has no test. The last column says how the code was broken to see the tests fail (`make breaks`).
"""

BEYOND_NUMBERS = """
## Further promises

The event stream; degraded service while a server is away; killed and stopped processes (`chaos`); limits; dispatch and
the end of an operation; stores that were restored to an older copy; idempotency keys; retry and repair of batches.
`python -m tests.mutations TOPIC` breaks the code of one topic again, on a copy.

| topic | tests | fail when |
|---|---|---|
"""


def page() -> str:
    return table(INTRODUCTION, RULES, NOT_SHOWN, SEEN_FAILING) + BEYOND_NUMBERS + "".join(_beyond())


def _beyond() -> Iterator[str]:
    for each in BREAKS:
        about = [rule for rule in each.rules if not rule[1:].isdigit()]
        if about:
            tests = "<br>".join(f"`{located(test)}`" for test in each.tests)
            yield f"| {' '.join(about)} | {tests} | {each.what} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
