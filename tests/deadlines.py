"""The deadline of waiting tests: it only catches hangs. Runs with deliberate breaks set a shorter one."""

import os

HANGS_S = float(os.environ.get("NODESMITH_TEST_HANGS_S", "100"))
