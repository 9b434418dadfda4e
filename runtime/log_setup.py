"""Logs: structlog over the standard library, one JSON object per line on stderr, without secrets.

The JSON is ASCII, so no line can contain terminal control characters.
"""

import logging
import re
import sys

import structlog

_SECRETS = re.compile(
    r"(?P<before>/sign-in/|\bns(?:tok|inv|reg|admin)-)[^\s\"'\\&;,/@]+"
    r"|(?P<bearer>\bBearer )[^\s\"'\\,;]+"
    r"|(?P<parameter>[?&;][\w.-]{0,100}(?:token|secret|signature|pass|credential|key|sig|code|auth|jwt|session|ticket)"
    r"[\w.-]{0,100}=)[^\s\"\\&]+"
    r"|(?P<user>://[^/\s:@\"]*:)[^/\s@\"]+(?=@)",
    re.IGNORECASE,
)
"""sign-in codes, tokens, invites, secret query parameters, and passwords in addresses"""


def configure(level: str = "INFO") -> None:
    """Configure logging; records of libraries take the same path as ours."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
                _without_secrets,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("httpx2", "httpcore2", "uvicorn.access", "alembic.runtime.plugins"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def redacted(text: str) -> str:
    """Return the text with secrets replaced by ***."""
    return _SECRETS.sub(lambda found: f"{found[found.lastgroup or 0]}***", text)


def _without_secrets(_logger: object, _name: str, line: object) -> str:
    """Redact the whole line as the last step, including library records and tracebacks."""
    return redacted(str(line))
