"""The settings of a process: one typed model, from a file, the environment and flags; later ones win."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, TypeVar

import pydantic_settings
from pydantic import Field, FilePath, StringConstraints, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    CliApp,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core import ErrorDetails

StreamName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{1,100}$")]
Servers: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[^\s,]+:\d+(,[^\s,]+:\d+)*$")]
Port: TypeAlias = Annotated[int, Field(ge=0, le=65535)]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
PositiveSeconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SecurityProtocol: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


class ServiceSettings(BaseSettings):
    """Settings that every process has; a process adds its own in a subclass and is given them by `load`.

    A field's docstring is its line in `--help`, the subclass's docstring the text above them. Secrets are
    never values of settings: a setting names the file that holds one.
    """

    model_config = SettingsConfigDict(
        env_prefix="PENSTOCK_",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_show_env_vars=True,
    )

    config: Path | None = None
    """A TOML file with settings, named as here with underscores; environment and flags override it."""

    stream: StreamName
    """The stream: one experiment, one pair of topics, one store."""

    bootstrap_servers: Servers = "127.0.0.1:9092"
    """Kafka brokers to start from, as host:port,host:port; KAFKA_BOOTSTRAP_SERVERS is heeded too."""

    security_protocol: SecurityProtocol = "PLAINTEXT"
    """How to talk to Kafka."""

    sasl_mechanism: SaslMechanism | None = None
    """How to log in to Kafka."""

    sasl_username: str | None = None
    """The user to log in to Kafka as."""

    sasl_password_file: FilePath | None = None
    """The file that holds that user's password."""

    ssl_cafile: FilePath | None = None
    """PEM file of the authorities that sign the brokers' certificates; without it the system's."""

    ssl_certfile: FilePath | None = None
    """PEM file of this client's certificate."""

    ssl_keyfile: FilePath | None = None
    """PEM file of the client certificate's key, where the certificate's file does not hold it."""

    metrics_host: str = "127.0.0.1"
    """The address at which metrics and health are served; 0.0.0.0 for all."""

    metrics_port: Port = 0
    """The port at which metrics and health are served; 0 for a free one, which is logged."""

    log_level: LogLevel = "info"
    """What is worth a log line."""

    @property
    def rollouts_topic(self) -> str:
        """The topic that the stream's messages travel in."""
        return f"rollouts.{self.stream}"

    @property
    def policies_topic(self) -> str:
        """The compacted topic that the stream's policy records travel in."""
        return f"policies.{self.stream}"

    @property
    def dead_letter_topic(self) -> str:
        """The topic to which the stream's invalid messages go."""
        return f"rollouts.{self.stream}.dead-letter"

    def kafka_security(self) -> dict[str, str]:
        """Return kafka-python's keyword arguments for TLS and SASL: the password is in them, never log them.

        Raises `SettingsError` where the password cannot be read.
        """
        options = {
            "security_protocol": self.security_protocol,
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": self.sasl_password_file and _read_secret(self.sasl_password_file),
            "ssl_cafile": self.ssl_cafile,
            "ssl_certfile": self.ssl_certfile,
            "ssl_keyfile": self.ssl_keyfile,
        }
        return {name: str(value) for name, value in options.items() if value is not None}

    @model_validator(mode="after")
    def _security_is_whole(self) -> Self:
        # kafka-python ignores what its protocol has no use for: the brokers would be talked to less safely
        # than whoever wrote these settings believes.
        protocol = f"--security-protocol {self.security_protocol}"
        sasl = (self.sasl_mechanism, self.sasl_username, self.sasl_password_file)
        if self.security_protocol.startswith("SASL_") and None in sasl:
            raise ValueError(f"{protocol} needs --sasl-mechanism, --sasl-username and --sasl-password-file")
        if not self.security_protocol.startswith("SASL_") and any(sasl):
            raise ValueError(f"{protocol} has no use for --sasl-…: choose SASL_SSL or SASL_PLAINTEXT")
        if not self.security_protocol.endswith("SSL") and any((self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile)):
            raise ValueError(f"{protocol} has no use for --ssl-…: choose SSL or SASL_SSL")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ValueError(f"--ssl-keyfile {self.ssl_keyfile} needs --ssl-certfile")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources behind the flags: the environment, then the file; pydantic-settings calls this."""
        del env_settings, dotenv_settings, file_secret_settings
        servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
        return (
            init_settings,
            # Empty is unset, as compose files and charts write it. Unknown variables are left alone: the
            # processes share an environment, and Kubernetes adds variables that are named after services.
            _Environment(settings_cls, env_ignore_empty=True),
            InitSettingsSource(settings_cls, {"bootstrap_servers": servers} if servers else {}),
            _ConfigFile(settings_cls),
        )


S = TypeVar("S", bound=ServiceSettings)


def load(settings_class: type[S], argv: Sequence[str]) -> S:
    """Gather the settings from flags, environment, file and defaults, the first that has one wins.

    Raises `SettingsError` that lists all that is wrong, by name; `--help` prints every setting and exits.
    """
    try:
        return CliApp.run(settings_class, cli_args=list(argv), cli_exit_on_error=False)
    except ValidationError as error:
        refusals = [_refusal(settings_class, details) for details in error.errors(include_url=False)]
    except pydantic_settings.SettingsError as error:
        refusals = [_parse_refusal(error)]
    # Out here the library's error, which holds all values, is not chained to ours.
    if len(refusals) == 1:
        raise SettingsError(refusals[0])
    raise SettingsError("\n  ".join([f"{len(refusals)} settings are wrong:", *refusals]))


def _refusal(settings_class: type[ServiceSettings], details: ErrorDetails) -> str:
    if not details["loc"]:
        return str(details["ctx"]["error"])
    name, *inside = map(str, details["loc"])
    flag = _flag(name)
    if details["type"] == "missing":
        return f"{flag} is required: give the flag, PENSTOCK_{name.upper()}, or {name} in the file"
    if details["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name.replace("-", "_"), settings_class.model_fields, n=1)
        hint = f", did you mean {near[0]}?" if near else "; --help lists them"
        return f"the file has {name!r}, which is no setting{hint}"
    where = "".join(f" [{key}]" for key in inside)
    return f"{flag} {str(details['input'])!r}{where}: {details['msg'].removeprefix('Value error, ')}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parse_refusal(error: pydantic_settings.SettingsError) -> str:
    message = str(error).removeprefix("error parsing CLI: ")
    kind, _, words = message.partition(": ")
    if kind != "unrecognized arguments":
        field = re.search(r'encountered for (\w+):|for field "(\w+)"', message)
        return f"{_flag(field[1] or field[2])}: cannot be parsed: {error.__cause__}" if field else message
    # Someone may try to give a secret by a flag that does not exist: its value is not repeated.
    flags = [word.partition("=")[0] for word in words.split() if word.startswith("-")]
    return f"unknown: {', '.join(flags or words.split())}; --help lists the flags"


class _Environment(EnvSettingsSource):
    """Settings from the environment that the flags do not give."""

    def __call__(self) -> dict[str, Any]:
        return _besides(self.current_state, super().__call__())


class _ConfigFile(TomlConfigSettingsSource):
    """Settings from the file that the sources before this one name."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls, toml_file=None)

    def __call__(self) -> dict[str, Any]:
        path = self.current_state.get("config")
        if path is None:
            return {}
        try:
            settings = self._read_file(Path(path))
        except (OSError, ValueError) as error:
            raise SettingsError(f"--config {path}: cannot be read as TOML: {error}") from error
        if "config" in settings:
            raise SettingsError(f"--config {path}: a file names no other file, take its config away")
        return _besides(self.current_state, settings)


def _besides(given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is given already: pydantic-settings would merge two mappings, key by key."""
    return {name: value for name, value in settings.items() if name not in given}


def _read_secret(path: Path) -> str:
    try:
        secret = path.read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        # Without its cause: a decoding error holds the bytes.
        raise SettingsError(f"--sasl-password-file {path}: cannot be read: {type(error).__name__}") from None
    if not secret:
        raise SettingsError(f"--sasl-password-file {path}: the file is empty")
    return secret
