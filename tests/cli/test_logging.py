"""`taskbull worker` and the logging that an application has configured."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from taskbull import __version__
from tests.cli.programs import run
from tests.servers.kinds import KINDS, SharedServers

APP = """
import logging, logging.config
from taskbull import App
{config}
app = App("shop", redis={url!r}, prefix={prefix!r})

@app.task(attempts=1, process={process})
def fail() -> None:
    logging.getLogger("shop").warning("about to fail")
    raise KeyError("no such card")
"""

DISABLING = """
logging.getLogger("shop")
logging.config.dictConfig({
    "version": 1,
    "formatters": {"own": {"format": "OWN %(name)s %(message)s"}},
    "handlers": {"err": {"class": "logging.StreamHandler", "formatter": "own"}},
    "root": {"handlers": ["err"], "level": "INFO"},
})
"""

BASIC = 'logging.basicConfig(format="OWN %(message)s", level="INFO")'


@pytest.fixture
def url(shared_servers: SharedServers) -> str:
    return shared_servers.emptied(KINDS[0]).url


ROOT = DISABLING.replace('"version": 1,', '"version": 1, "disable_existing_loggers": False,')

ONE_LOGGER = """
logging.config.dictConfig({
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"own": {"format": "OWN %(name)s %(message)s"}},
    "handlers": {"err": {"class": "logging.StreamHandler", "formatter": "own"}},
    "loggers": {"shop": {"handlers": ["err"], "level": "INFO", "propagate": False}},
})
"""


def lines(tmp_path: Path, url: str, config: str, *flags: str, process: bool = False) -> list[str]:
    """Run a failing job with a worker whose app has this configuration; return its log."""
    prefix = f"test-{uuid.uuid4().hex}"
    (tmp_path / "shop.py").write_text(
        APP.format(config=config, url=url, prefix=prefix, process=process)
    )
    called = run("-A", "shop:app", "call", "fail", cwd=tmp_path)
    assert called.returncode == 0, called.stderr
    done = run("worker", "shop:app", "--burst", "--no-supervisor", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_handlers_of_the_application_stay(tmp_path: Path, url: str) -> None:
    found = lines(tmp_path, url, BASIC)
    assert any(line.startswith("OWN about to fail") for line in found)
    assert any(line.startswith("OWN Job 1 (fail)") and "no such card" in line for line in found)


def test_loggers_that_were_disabled_are_enabled(tmp_path: Path, url: str) -> None:
    found = lines(tmp_path, url, DISABLING)
    assert sum("Enabled taskbull's loggers" in line for line in found) == 1
    assert any(line.startswith("OWN taskbull.worker Job 1 (fail)") for line in found)


def test_a_level_of_our_own_and_a_format_that_cannot_be_applied(tmp_path: Path, url: str) -> None:
    found = lines(tmp_path, url, BASIC, "--log-level", "error", "--log-format", "json")
    assert any("failed permanently" in line for line in found)
    assert not any("started" in line for line in found)
    found = lines(tmp_path, url, BASIC, "--log-format", "json")
    assert any(line.startswith("OWN Ignored --log-format") for line in found)


def test_without_a_configuration_we_log_to_standard_error(tmp_path: Path, url: str) -> None:
    found = lines(tmp_path, url, "", "--log-format", "json")
    messages = [json.loads(line)["message"] for line in found if line.startswith("{")]
    assert "about to fail" in messages
    assert any("failed permanently" in message for message in messages)
    [start] = [json.loads(line) for line in found if "Worker started" in line]  # V38
    assert (start["app"], start["queues"], start["version"]) == ("shop", ["default"], __version__)
    assert messages[-1] == "Worker stopped"


OWN_HANDLER = """
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("OWN %(message)s"))
handler.setLevel({level!r})
logging.getLogger("shop").addHandler(handler)
"""


@pytest.mark.parametrize(("level", "own", "ours"), [("INFO", 1, 0), ("ERROR", 0, 1)])
def test_what_a_handler_of_the_application_writes_is_not_repeated(
    tmp_path: Path, url: str, level: str, own: int, ours: int
) -> None:
    found = lines(tmp_path, url, OWN_HANDLER.format(level=level))
    said = [line for line in found if "about to fail" in line]
    assert sum(line.startswith("OWN") for line in said) == own
    assert len(said) == own + ours
    assert any("failed permanently" in line for line in found)


@pytest.mark.parametrize("config", [BASIC, ROOT, ONE_LOGGER])
def test_the_handlers_of_the_application_write_what_a_pool_process_logs(
    tmp_path: Path, url: str, config: str
) -> None:
    found = lines(tmp_path, url, config, process=True)
    said = [line for line in found if "about to fail" in line and "logging.get" not in line]
    assert [line.startswith("OWN") for line in said] == [True]
    assert "stderr" not in said[0]


def test_logging_can_be_left_to_the_application(tmp_path: Path, url: str) -> None:
    found = lines(tmp_path, url, DISABLING, "--no-logging")
    assert not any("OWN taskbull" in line for line in found)


@pytest.mark.parametrize("name", ["log.json", "log.toml"])
def test_a_file_configures_logging(tmp_path: Path, url: str, name: str) -> None:
    handler = {"class": "logging.FileHandler", "filename": str(tmp_path / "out.log")}
    (tmp_path / "log.json").write_text(
        json.dumps({"handlers": {"file": handler}, "root": {"handlers": ["file"], "level": "INFO"}})
    )
    (tmp_path / "log.toml").write_text(
        f"[handlers.file]\nclass = 'logging.FileHandler'\nfilename = '{tmp_path}/out.log'\n"
        "[root]\nhandlers = ['file']\nlevel = 'INFO'\n"
    )
    lines(tmp_path, url, BASIC, "--log-config", str(tmp_path / name))
    written = (tmp_path / "out.log").read_text()
    assert "about to fail" in written
    assert "no such card" in written


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "Cannot use log configuration"),
        ("[]", "Cannot use log configuration"),
        ('{"root": {"handlers": ["no"]}}', "Cannot use log configuration"),
        ('{"version": 2}', "Unsupported version"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, url: str, text: str, told: str) -> None:
    (tmp_path / "shop.py").write_text(APP.format(config="", url=url, prefix="x", process=False))
    (tmp_path / "log.json").write_text(text)
    done = run("worker", "shop:app", "--burst", "--log-config", "log.json", cwd=tmp_path)
    assert done.returncode != 0
    assert told in done.stderr
    assert "Traceback" not in done.stderr
