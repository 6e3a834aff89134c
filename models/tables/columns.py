"""The parts that all tables share: the metadata with its naming convention, and the kinds of columns."""

from typing import Any, cast

from sqlalchemy import DateTime, Table, Text, func
from sqlmodel import Field, SQLModel

METADATA = SQLModel.metadata

METADATA.naming_convention = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def time_column(*, default_now: bool = False) -> Any:
    """Returns a ``timestamptz`` column: NOT NULL and set by the database if ``default_now``, else nullable."""
    if default_now:
        return Field(
            sa_type=DateTime(timezone=True),
            sa_column_kwargs={"server_default": func.clock_timestamp(), "nullable": False},
        )
    return Field(default=None, sa_type=DateTime(timezone=True), nullable=True)


def text_column(*, primary_key: bool = False, nullable: bool = False) -> Any:
    """Returns a ``text`` column, NOT NULL unless ``nullable``."""
    return Field(sa_type=Text, primary_key=primary_key, nullable=nullable)


def table(model: type[SQLModel]) -> Table:
    """Returns the Core table of ``model``, from which statements are built."""
    return cast("Table", model.__table__)  # type: ignore[attr-defined]
