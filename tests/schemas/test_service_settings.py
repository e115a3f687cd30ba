from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from penstock_schemas.errors import SettingsError
from penstock_schemas.service import ServiceSettings, load

if TYPE_CHECKING:
    from pathlib import Path


class Settings(ServiceSettings):
    """Steps environments."""

    model_config = SettingsConfigDict(cli_prog_name="penstock-test")

    num_envs: int = Field(default=1, ge=1)
    """How many environments to step."""

    env_kwargs: dict[str, Any] = Field(default={})
    """What the environment is made with, as JSON."""

    cut: bool = False
    """Whether to cut episodes."""


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)


def refusal(*argv: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(Settings, argv)
    return str(caught.value)


def test_later_sources_win_over_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('stream = "file"\nnum_envs = 2\nlog_level = "error"\nmetrics_host = "::1"\n')
    monkeypatch.setenv("PENSTOCK_STREAM", "environment")
    monkeypatch.setenv("PENSTOCK_NUM_ENVS", "3")
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "debug")

    settings = load(Settings, ["--config", str(file), "--stream", "flag", "--log-level=info"])

    # log_level: a flag wins even where it says what the default would.
    assert settings.stream == "flag"
    assert settings.log_level == "info"
    assert settings.num_envs == 3
    assert settings.metrics_host == "::1"
    assert settings.metrics_port == 0


def test_of_two_mappings_the_later_one_wins_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('stream = "s"\nenv_kwargs = {file = 1, nested = {file = 1}}\n')
    argv = ["--config", str(file)]
    assert load(Settings, argv).env_kwargs == {"file": 1, "nested": {"file": 1}}
    monkeypatch.setenv("PENSTOCK_ENV_KWARGS", '{"nested": {"variable": 2}}')
    assert load(Settings, argv).env_kwargs == {"nested": {"variable": 2}}
    assert load(Settings, [*argv, "--env-kwargs", '{"flag": 3}']).env_kwargs == {"flag": 3}
    assert load(Settings, [*argv, "--env-kwargs", "{}"]).env_kwargs == {}


def test_the_environment_names_the_file_and_a_flag_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(f'stream = "{name}"\n')
    monkeypatch.setenv("PENSTOCK_CONFIG", str(tmp_path / "one"))

    assert load(Settings, []).stream == "one"
    assert load(Settings, ["--config", str(tmp_path / "two")]).stream == "two"


def test_brokers_come_from_kafkas_own_variable_unless_penstocks_or_a_flag_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('stream = "s"\nbootstrap_servers = "file:1"\n')
    argv = ["--config", str(file)]
    assert load(Settings, argv).bootstrap_servers == "file:1"

    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "kafka:2,kafka:3")
    assert load(Settings, argv).bootstrap_servers == "kafka:2,kafka:3"

    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", "penstock:4")
    assert load(Settings, argv).bootstrap_servers == "penstock:4"
    assert load(Settings, [*argv, "--bootstrap-servers", "flag:5"]).bootstrap_servers == "flag:5"


def test_an_empty_variable_is_an_unset_one_but_an_empty_flag_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_NUM_ENVS", "")
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "")
    monkeypatch.setenv("PENSTOCK_STREAM", "s")
    assert load(Settings, []).num_envs == 1
    assert load(Settings, []).bootstrap_servers == "127.0.0.1:9092"
    assert "--stream ''" in refusal("--stream", "")


def test_flags_are_kebab_case_booleans_are_switches_and_mappings_are_json() -> None:
    settings = load(
        Settings, ["--stream", "s", "--num-envs", "64", "--cut", "--env-kwargs", '{"render_mode": null, "n": 2}']
    )
    assert settings.num_envs == 64
    assert settings.cut is True
    assert settings.env_kwargs == {"render_mode": None, "n": 2}
    assert load(Settings, ["--stream", "s", "--cut", "--no-cut"]).cut is False


def test_topics_are_named_after_the_stream() -> None:
    settings = load(Settings, ["--stream", "cart-pole_1.a"])
    assert settings.rollouts_topic == "rollouts.cart-pole_1.a"
    assert settings.policies_topic == "policies.cart-pole_1.a"
    assert settings.dead_letter_topic == "rollouts.cart-pole_1.a.dead-letter"


def test_settings_do_not_change() -> None:
    settings = load(Settings, ["--stream", "s"])
    with pytest.raises(ValueError, match="frozen"):
        settings.num_envs = 2


def test_help_tells_every_setting_with_its_flag_variable_description_and_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as ended:
        load(Settings, ["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out.replace("\n                        ", " ").splitlines()
    told = [line for line in told if line]
    assert told[0].startswith("usage: penstock-test ")
    assert "Steps environments." in told
    for name, field in Settings.model_fields.items():
        assert field.description, name
        default = "null" if field.default is None else field.default
        says = "required" if field.is_required() else f"default: {default}"
        flag = f"--{name.replace('_', '-')}"
        tail = f"{field.description} ({says}) [env: PENSTOCK_{name.upper()}]"
        assert any(line.split()[0].rstrip(",") == flag and line.endswith(tail) for line in told), flag


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--stream is required: give the flag, PENSTOCK_STREAM, or stream in the file"),
        (["--stream", "a b"], "--stream 'a b': String should match pattern '^[a-zA-Z0-9._-]{1,100}$'"),
        (["--stream", "a\n"], "--stream 'a\\n': String should match pattern"),
        (["--stream", "a" * 101], f"--stream '{'a' * 101}': String should match pattern"),
        (["--stream", "s", "--num-envs", "0"], "--num-envs '0': Input should be greater than or equal to 1"),
        (["--stream", "s", "--num-envs", "many"], "--num-envs 'many': Input should be a valid integer"),
        (["--stream", "s", "--metrics-port", "65536"], "--metrics-port '65536': Input should be less than or"),
        (
            ["--stream", "s", "--log-level", "loud"],
            "--log-level 'loud': Input should be 'debug', 'info', 'warning' or 'error'",
        ),
        (["--stream", "s", "--bootstrap-servers", "kafka"], "--bootstrap-servers 'kafka': String should match"),
        (["--stream", "s", "--ssl-cafile", "/none"], "--ssl-cafile '/none': Path does not point to a file"),
        (["--stream", "s", "--env-kwargs", '{"a": '], "--env-kwargs: cannot be parsed: "),
        (["--stream", "s", "--env-kwargs", '{"a": x}'], "--env-kwargs: cannot be parsed: Expecting value"),
        (["--stream"], "argument --stream: expected one argument"),
        (["--stream", "s", "--num-env", "3"], "unknown: --num-env; --help lists the flags"),
        (["--stream", "s", "CartPole-v1"], "unknown: CartPole-v1; --help lists the flags"),
        (["--stream", "s", "--config", "/none.toml"], "--config /none.toml: cannot be read as TOML: "),
    ],
)
def test_a_wrong_setting_is_refused_by_name(argv: list[str], message: str) -> None:
    told = refusal(*argv)
    assert told.startswith(message)
    assert "\n" not in told


def test_a_wrong_variable_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ENV_KWARGS", "{")
    assert refusal("--stream", "s").startswith("--env-kwargs: cannot be parsed: Expecting property name")


def test_wrong_settings_are_told_all_at_once() -> None:
    told = refusal("--num-envs", "0", "--metrics-port", "-1").splitlines()
    assert told[0] == "3 settings are wrong:"
    assert [line.split()[0] for line in told[1:]] == ["--stream", "--metrics-port", "--num-envs"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num-envs = 3", "the file has 'num-envs', which is no setting, did you mean num_envs?"),
        ("zzz = 3", "the file has 'zzz', which is no setting; --help lists them"),
        ("[producer]\nnum_envs = 3", "the file has 'producer', which is no setting"),
        ('num_envs = "x"', "--num-envs 'x': Input should be a valid integer"),
        ('config = "other.toml"', "a file names no other file"),
        ("num_envs = ", "cannot be read as TOML: Invalid value (at "),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    assert message in refusal("--stream", "s", "--config", str(file))


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(" hunter2 \n")
    return file


def test_kafka_is_told_how_to_log_in(tmp_path: Path, secret_file: Path) -> None:
    authorities = tmp_path / "ca.pem"
    authorities.touch()
    settings = load(
        Settings,
        [
            "--stream=s",
            "--security-protocol=SASL_SSL",
            "--sasl-mechanism=SCRAM-SHA-512",
            "--sasl-username=me",
            f"--sasl-password-file={secret_file}",
            f"--ssl-cafile={authorities}",
        ],
    )
    assert settings.kafka_security().keys() < KafkaProducer.DEFAULT_CONFIG.keys()
    assert settings.kafka_security() == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": " hunter2 ",
        "ssl_cafile": str(authorities),
    }
    assert "hunter2" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_without_security_kafka_is_told_only_that() -> None:
    assert load(Settings, ["--stream", "s"]).kafka_security() == {"security_protocol": "PLAINTEXT"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--security-protocol=SASL_SSL"], "SASL_SSL needs --sasl-mechanism, --sasl-username and --sasl-pass"),
        (["--sasl-username=me"], "--security-protocol PLAINTEXT has no use for --sasl-"),
        (["--ssl-cafile={file}"], "--security-protocol PLAINTEXT has no use for --ssl-"),
        (["--security-protocol=SSL", "--sasl-password-file={file}"], "SSL has no use for --sasl-"),
        (["--security-protocol=SSL", "--ssl-keyfile={file}"], "needs --ssl-certfile"),
    ],
)
def test_half_a_security_is_refused(secret_file: Path, flags: list[str], message: str) -> None:
    told = refusal("--stream=s", *(flag.format(file=secret_file) for flag in flags))
    assert message in told
    assert "hunter2" not in told


@pytest.mark.parametrize(
    ("content", "message"), [(b"\n", "the file is empty"), (b"hunter2\xff", "cannot be read: UnicodeDecodeError")]
)
def test_an_unusable_password_is_refused_and_not_told(secret_file: Path, content: bytes, message: str) -> None:
    secret_file.write_bytes(content)
    settings = load(
        Settings,
        [
            "--stream=s",
            "--security-protocol=SASL_PLAINTEXT",
            "--sasl-mechanism=PLAIN",
            "--sasl-username=me",
            f"--sasl-password-file={secret_file}",
        ],
    )
    with pytest.raises(SettingsError) as caught:
        settings.kafka_security()
    assert str(caught.value) == f"--sasl-password-file {secret_file}: {message}"
    assert caught.value.__cause__ is None
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "argv",
    [
        ["--stream=s", "--sasl-password=hunter2"],
        ["--stream=s", "--sasl-password", "hunter2"],
        ["--config={file}"],
    ],
)
def test_a_secret_given_where_none_belongs_is_not_repeated(tmp_path: Path, argv: list[str]) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('stream = "s"\nsasl_password = "hunter2"\n')
    with pytest.raises(SettingsError, match=r"sasl[-_]password") as caught:
        load(Settings, [flag.format(file=file) for flag in argv])
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_variables_of_other_processes_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CONSUMER_SERVICE_HOST", "10.0.0.1")
    assert load(Settings, ["--stream", "s"]).stream == "s"
