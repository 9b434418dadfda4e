"""Runs Alembic on an open connection."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def alembic_config(connection: Connection) -> Config:
    """Alembic's settings for an open connection."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def upgrade(connection: Connection) -> None:
    command.upgrade(alembic_config(connection), "head")
