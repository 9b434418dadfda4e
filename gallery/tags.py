"""What tags stand for at their registries now."""

import httpx2
import structlog

from contracts.sources import SourceAccess
from gallery import oci
from gallery.fetching import Access, Unreachable, client_for
from gallery.oci import NotOci
from gallery.registry import Registry, RegistryFailed

log = structlog.stdlib.get_logger(__name__)


class RegistryTags:
    """Asks with what an admin has set for the registry's host."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def is_reference(self, uri: str) -> bool:
        return oci.is_reference(uri)

    async def digest(self, uri: str) -> str | None:
        """The digest of the tag; None when the registry does not tell it."""
        reference = oci.read_reference(uri)
        try:
            access = await self._access(reference.host) or SourceAccess(host=reference.host)
            async with client_for(access) as http:
                registry = Registry(http, username=access.username, password=access.password)
                return await registry.digest(reference)
        except (RegistryFailed, NotOci, Unreachable, httpx2.HTTPError, OSError) as error:
            log.warning("tag.unknown", reference=str(reference), error=str(error) or type(error).__name__)
            return None
