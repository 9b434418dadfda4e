"""All deliberate breaks: each one makes the tests fail that it names. `make breaks` verifies this on a copy.

Modules of breaks import nothing of the product, because the broken processes import them.
"""

from tests.breaking.arming import Break
from tests.breaks_admission import ADMISSION
from tests.breaks_agent import AGENT
from tests.breaks_api import API
from tests.breaks_archives import ARCHIVES
from tests.breaks_artifacts import ARTIFACTS
from tests.breaks_batch import BATCH
from tests.breaks_confinement import CONFINEMENT
from tests.breaks_dispatch import DISPATCH
from tests.breaks_keys import KEYS
from tests.breaks_limits import LIMITS
from tests.breaks_models import MODELS
from tests.breaks_nats import NATS
from tests.breaks_operation import OPERATION
from tests.breaks_operation_rows import ROWS
from tests.breaks_orders import ORDERS
from tests.breaks_outage import OUTAGE
from tests.breaks_signed import SIGNED
from tests.breaks_sources import SOURCES
from tests.breaks_store import STORE
from tests.breaks_stream import STREAM
from tests.breaks_temporal import TEMPORAL
from tests.breaks_told import TOLD
from tests.breaks_v1 import V1

BREAKS: tuple[Break, ...] = (
    *(*ADMISSION, *OPERATION, *ROWS, *DISPATCH, *OUTAGE, *KEYS, *ORDERS, *SIGNED),
    *(*BATCH, *AGENT, *STORE, *TOLD, *STREAM, *LIMITS, *ARCHIVES, *API, *V1, *SOURCES, *NATS),
    *TEMPORAL,
    *CONFINEMENT,
    *ARTIFACTS,
    *MODELS,
)

SEEN_FAILING = {
    rule: "; ".join(each.what for each in BREAKS if rule in each.rules)
    for rule in dict.fromkeys(rule for each in BREAKS for rule in each.rules)
}
"""rule -> what was broken when its tests were seen failing"""


def named(what: str) -> Break:
    return next(each for each in BREAKS if each.what == what)
