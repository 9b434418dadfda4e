"""Alembic's entry: runs on the connection that `store.database` opened, inside its transaction."""

from alembic import context

from store import (
    models_access,  # noqa: F401 - its tables belong to the same metadata
    models_galleries,  # noqa: F401 - its tables belong to the same metadata
    models_inventory,  # noqa: F401 - its tables belong to the same metadata
)
from store.models import Base

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Base.metadata, compare_server_default=True)
with context.begin_transaction():
    context.run_migrations()
