"""The deliberate breaks, all of them: with each, the tests that it names fail. `make breaks` repeats it, on a copy.

Modules of breaks import nothing of the product: processes that are broken import them.
"""

from tests.breaking.arming import Break
from tests.breaks_admission import ADMISSION
from tests.breaks_agent import AGENT
from tests.breaks_batch import BATCH
from tests.breaks_dispatch import DISPATCH
from tests.breaks_keys import KEYS
from tests.breaks_limits import LIMITS
from tests.breaks_operation import OPERATION
from tests.breaks_operation_rows import ROWS
from tests.breaks_store import STORE
from tests.breaks_stream import STREAM
from tests.breaks_told import TOLD

BREAKS: tuple[Break, ...] = (
    *(*ADMISSION, *OPERATION, *ROWS, *DISPATCH, *KEYS),
    *(*BATCH, *AGENT, *STORE, *TOLD, *STREAM, *LIMITS),
)

SEEN_FAILING = {
    rule: "; ".join(each.what for each in BREAKS if rule in each.rules)
    for rule in dict.fromkeys(rule for each in BREAKS for rule in each.rules)
}
"""rule -> what was broken when its tests were seen failing"""


def named(what: str) -> Break:
    return next(each for each in BREAKS if each.what == what)
