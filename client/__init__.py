"""A typed client of the API, for Python programs; the command line is built on it.

See docs/how-to/automate.md.
"""

from nodesmith.client.clients import AsyncClient, Client
from nodesmith.client.errors import ClientError, Refused, UnexpectedAnswer, Unreachable
from nodesmith.client.following import LinkLost, Update

__all__ = ["AsyncClient", "Client", "ClientError", "LinkLost", "Refused", "UnexpectedAnswer", "Unreachable", "Update"]
