"""Log lines contain no secrets and no terminal control characters."""

import subprocess
import sys

import pytest

from nodesmith.runtime.log_setup import redacted


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('"path": "/sign-in/Zk3-_x9AbC"', '"path": "/sign-in/***"'),
        ("GET /sign-in/abc?next=1 HTTP/1.1", "GET /sign-in/*** HTTP/1.1"),
        ("token nstok-abcDEF_123-x was shown", "token nstok-*** was shown"),
        ('"invite": "nsinv-abcDEF"', '"invite": "nsinv-***"'),
        ("nsadmin-abc_1 and nsreg-x-2", "nsadmin-*** and nsreg-***"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("postgresql://ada:pa55word@db/x", "postgresql://ada:***@db/x"),
        ("https://h/x?X-Amz-Signature=abc&part=2", "https://h/x?X-Amz-Signature=***&part=2"),
        ("https://h/x?a=1&access_token=abc", "https://h/x?a=1&access_token=***"),
        ('{"event": "api.listening", "port": 8900}', '{"event": "api.listening", "port": 8900}'),
        ("http://127.0.0.1:8900/api/nodes?selector=zone", "http://127.0.0.1:8900/api/nodes?selector=zone"),
    ],
)
def test_secrets_are_left_out(line: str, shown: str) -> None:
    assert redacted(line) == shown


SCRIPT = """
import logging, structlog
from runtime import log_setup
log_setup.configure()
structlog.stdlib.get_logger("ours").warning("asked", path="/sign-in/secret-code", name="a\\x1b]0;owned\\x07\\u202e")
logging.getLogger("library").error("GET %s", "https://h/x?token=secret-code")
try:
    raise ValueError("nstok-secret-code")
except ValueError:
    structlog.stdlib.get_logger("ours").exception("failed")
"""


def test_our_lines_those_of_libraries_and_traces_are_clean() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert len(done.stderr.splitlines()) == 3
    assert "secret-code" not in done.stderr
    assert done.stderr.isascii()
    assert "\x1b" not in done.stderr
