"""All deliberate breaks: each one makes the tests fail that it names. `make breaks` verifies this on a copy.

Modules of breaks import nothing of the product, because the broken processes import them.
"""

from tests.mutations.arming import Break
from tests.mutations.breaks.admission import ADMISSION
from tests.mutations.breaks.agent import AGENT
from tests.mutations.breaks.api import API
from tests.mutations.breaks.archives import ARCHIVES
from tests.mutations.breaks.artifacts import ARTIFACTS
from tests.mutations.breaks.batch import BATCH
from tests.mutations.breaks.confinement import CONFINEMENT
from tests.mutations.breaks.dispatch import DISPATCH
from tests.mutations.breaks.found import FOUND
from tests.mutations.breaks.gateway import GATEWAY
from tests.mutations.breaks.keys import KEYS
from tests.mutations.breaks.limits import LIMITS
from tests.mutations.breaks.models import MODELS
from tests.mutations.breaks.nats import NATS
from tests.mutations.breaks.operation import OPERATION
from tests.mutations.breaks.operation_rows import ROWS
from tests.mutations.breaks.orders import ORDERS
from tests.mutations.breaks.outage import OUTAGE
from tests.mutations.breaks.presentation import PRESENTATION
from tests.mutations.breaks.signed import SIGNED
from tests.mutations.breaks.sources import SOURCES
from tests.mutations.breaks.store import STORE
from tests.mutations.breaks.stream import STREAM
from tests.mutations.breaks.temporal import TEMPORAL
from tests.mutations.breaks.v1 import V1

BREAKS: tuple[Break, ...] = (
    *(*ADMISSION, *OPERATION, *ROWS, *DISPATCH, *OUTAGE, *KEYS, *ORDERS, *SIGNED),
    *(*BATCH, *AGENT, *STORE, *PRESENTATION, *STREAM, *LIMITS, *ARCHIVES, *API, *V1, *SOURCES, *NATS),
    *TEMPORAL,
    *CONFINEMENT,
    *ARTIFACTS,
    *FOUND,
    *MODELS,
    *GATEWAY,
)

SEEN_FAILING = {
    rule: "; ".join(each.what for each in BREAKS if rule in each.rules)
    for rule in dict.fromkeys(rule for each in BREAKS for rule in each.rules)
}
"""rule -> what was broken when its tests were seen failing"""


def named(what: str) -> Break:
    return next(each for each in BREAKS if each.what == what)
