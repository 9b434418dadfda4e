"""The table of rules about operations: `python -m tests.rules_operations > docs/rules-operations.md`."""

import sys
from collections.abc import Iterator

from tests.breaks import BREAKS, SEEN_FAILING
from tests.rule_tables import located
from tests.rule_tables import page as table

RULES = {
    "S1": "an install answers 202 at once and never waits for the node",
    "S2": "neither backend nor uri: 400",
    "S3": "one target is one node; no target is everybody",
    "S4": "one backend on two nodes at once: two jobs, none lost",
    "S5": "superseded by design 4: the key is a workflow id, made by one function and parsed by nobody",
    "S6": "the list names the node in a field of its own, and the bare backend",
    "S7": "the worker's own words reach the operation; only the failed nodes are tried again",
    "S8": "nobody has to look for the work to go on",
    "S9": "superseded by H22: all at once, and nobody gives up by a stopwatch",
    "S10": "cancelled is not shown as success",
    "S11": "a cancel of what still waits ends it",
    "S12": "a direct uri: name, else what the uri says, is the key",
    "S13": "what was orphaned gets an end by itself",
    "S14": "a duplicate dispatch is the same operation",
    "S15": "what succeeded leaves the live list by itself",
    "S16": "every replica shows the same",
    "S17": "what was cancelled leaves the live list",
    "S18": "what failed stays until dismissed",
    "S19": "what is still installing stays listed",
    "S20": "what is queued is listed as waiting",
    "S21": "many readers and writers at once",
    "S22": "an upgrade streams its progress as an install does",
    "S23": "we listen before we send",
    "S24": "one progress subject for all kinds",
    "S25": "superseded by G9: also a repeated try reports progress",
    "S26": "draining ends what waits",
    "S27": "superseded by G5: an absent node is waited for",
    "S28": "superseded by G5: an unreachable node is waited for",
    "S29": "no sweep ends what runs",
    "S30": "a cancel outlives a restart",
    "S31": "superseded by G4: nothing is orphaned, so nothing is reaped after half an hour",
    "S32": "the card of a failed operation does not spin",
    "S33": "version and badge refresh by themselves",
    "S34": "each mended bug has a test that failed first",
    "S35": "an install of what is there changes nothing",
    "S36": "superseded by H40: an upgrade has a subject of its own, and keeps serving",
    "S37": "a worker without the upgrade subject gets an install with force",
    "S38": "no answer in time is `still installing`",
    "S39": "a timeout is recognised as one, whatever its shape",
    "S40": "progress is heard when there is some; a silent worker is fine",
    "S41": "malformed and stale progress is dropped; a slow reader stalls nobody",
    "S42": "a model is unloaded on every node that has it; who fails is skipped, and named",
    "S43": "stop is fire-and-forget, of one or of everything",
    "S44": "bounds of the direct requests",
    "S45": "superseded by design 5: the workflow attaches again instead of pushing a retry",
    "S46": "agent nodes are skipped, and named",
    "S47": "nobody at the node is evidence",
    "S48": "ten failures are a dead letter; superseded: it is kept and can be driven again",
    "S49": "superseded: work for nobody is refused at admission, so there is nothing to prune",
    "S50": "names of earlier features",
    "S51": "superseded by H23 and G11: nodes are visited side by side; pending ones are skipped",
    "S52": "an absent node is `queued`, not an error",
    "S53": "per node: success, still running, or error",
    "S54": "only hard failures make the error, each with its node's name",
    "S55": "an upgrade goes only where it is installed",
    "S56": "lists are asked of the nodes; who is away is noted",
    "S57": "what the list shows as done is not done again",
    "S58": "the line of each node is in the status",
    "S59": "fields and order of the live list",
    "S60": "queued: always cancellable; a running removal never",
    "S61": "a crash of one handler fails only its own operation",
    "S62": "a settled end is never overwritten",
    "S63": "a hardware-specific build never goes to everybody",
    "H20": "no success with zero nodes",
    "H21": "the soft state is visible and becomes the real outcome",
    "H22": "no false failure by a client's stopwatch",
    "H23": "nodes work side by side",
    "H24": "the same backend on another node is never taken for a duplicate",
    "H25": "uri, name and alias survive retries",
    "H26": "a soft timeout is no attempt",
    "H27": "one slow node delays no other",
    "H30": "a forced reinstall reinstalls",
    "H31": "duplicates are recognised by the server",
    "H33": "old operations are purged",
    "H34": "pending work is visible",
    "H40": "an upgrade cuts no request and brings back what ran",
    "H41": "the guard for hardware-specific builds is on every way",
    "H42": "an install starts no process",
    "H43": "there is one copy of the truth",
    "G1": "a cancel reaches the node",
    "G2": "a cancel waits behind nothing",
    "G3": "what was cancelled never comes back",
    "G4": "an operation survives the death of any process",
    "G5": "an absent node is waited for",
    "G6": "a retry has the uri, the name and the alias",
    "G7": "a refused removal is a failure",
    "G8": "still installing is never counted as an attempt",
    "G9": "a retry reports progress",
    "G10": "duplicates are told by node, backend and intent, and never look like success",
    "G11": "no lock around everybody's retries",
    "G12": "a window, a limit of failures, selectors, pause; waves and canaries come with rollouts",
}
"""The numbers that concern operations, each in a few words."""

NOT_SHOWN = {
    "S32": "part of the console",
    "S33": "part of the console",
    "S34": "a way to work, not a behaviour",
    "S50": "a list of names, no behaviour",
}

INTRODUCTION = """\
# The rules about operations, and the tests that prove them

Generated from the docstrings of the tests by `python -m tests.rules_operations > docs/rules-operations.md`; a test
fails when it is old, or when a rule has no test. S: what operations have to do. H and G: weaknesses and gaps of others
that must not exist here. *Superseded*: the test shows what takes the rule's place. *Seen failing with*: what was
broken in the code, mostly as others have it, when the tests of that rule failed; `python -m tests.breaking S14` breaks
it again, on a copy.
"""

BEYOND_NUMBERS = """
## Promises without a number

The event stream; what is degraded while a server is away; processes that are killed or stopped at any moment; limits;
dispatch and the end of an operation (`dispatch`); stores that were restored to an older copy (`restored`);
`Idempotency-Key`; retry and repair of batches. `python -m tests.breaking stream` (`degraded`, `chaos`, `limits`,
`dispatch`, `restored`, `idempotency`, `batches`) breaks them again.

| about | proved by | seen failing with |
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
