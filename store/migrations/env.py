"""Entry point of Alembic: uses the connection and transaction of `nodesmith.store.database`."""

from alembic import context

from nodesmith.store.tables.core import Base

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Base.metadata, compare_server_default=True)
with context.begin_transaction():
    context.run_migrations()
