"""A typed client of the API, for Python programs; the command line is built on it.

See docs/how-to/automate.md. Requests and answers have the shapes of `nodesmith.contracts.http`.
"""

from nodesmith.client.back_off import LinkLost
from nodesmith.client.clients import AsyncClient, Client
from nodesmith.client.errors import ClientError, Refused, UnexpectedAnswer, Unreachable

__all__ = ["AsyncClient", "Client", "ClientError", "LinkLost", "Refused", "UnexpectedAnswer", "Unreachable"]
