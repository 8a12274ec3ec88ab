"""A program reads its files again without a restart, when they are newer than what it says it has loaded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import calls, load, on_path, program
from tests.unit.web import Site, serving

PAGE = """app_config_last_reload_success_timestamp_seconds {stamp}
app_config_last_reload_successful {good}
"""


class App:
    """A program that tells at /metrics when it loaded the files of `folder`."""

    def __init__(self, root: Path, site: Site) -> None:
        self.step, self.root, self.site, self.folder = load("roles/stack/library/stack_step.py"), root, site, root / "etc"
        self.step.RELOAD_LIMIT_S = 1
        (self.folder / "rules").mkdir(parents=True)
        (self.folder / "app.yml").write_text("a")
        for path in (self.folder, self.folder / "rules", self.folder / "app.yml"):
            os.utime(path, (1000, 1000))
        self.says(2000)
        self.systemctl("")

    def says(self, stamp: float, good: int = 1) -> None:
        self.site.pages["/metrics"] = (200, PAGE.format(stamp=stamp, good=good))

    def systemctl(self, body: str) -> None:
        program(self.root / "bin", "systemctl", body)

    def reload(self, stamp: float, good: int = 1) -> Callable[..., Any]:
        """What stands for running `systemctl reload`: afterwards the program says this."""

        def run(*argv: str) -> Any:
            assert argv == ("systemctl", "reload", "app.service")
            self.says(stamp, good)
            return self.step.subprocess.CompletedProcess(argv, 0, "", "")

        return run

    def take_up(self, dry: bool = False) -> Any:
        reload = {"folder": str(self.folder), "url": self.site.url + "/metrics", "metrics": "app_config"}
        return self.step.take_up("app.service", reload, dry)

    @property
    def reloads(self) -> int:
        return len(calls(self.root / "bin", "systemctl"))


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    on_path(monkeypatch, tmp_path / "bin")
    with serving(Site()) as site:
        yield App(tmp_path, site)


def test_files_that_were_loaded_are_left_alone(app: App) -> None:
    assert app.take_up() == (None, False, False)
    assert app.reloads == 0


@pytest.mark.parametrize("change", ["app.yml", "rules/new.yml", "removed"])
def test_a_file_that_changed_came_or_went_is_read_again(app: App, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if change == "removed":
        (app.folder / "app.yml").unlink()
    else:
        (app.folder / change).write_text("b")
    monkeypatch.setattr(app.step, "run", app.reload(stamp=time.time() + 1))
    assert app.take_up() == (None, True, False)


def test_in_check_mode_it_is_told_and_not_done(app: App) -> None:
    (app.folder / "app.yml").write_text("b")
    reason, reloaded, refused = app.take_up(dry=True)
    assert "has not taken up" in reason
    assert (reloaded, refused, app.reloads) == (False, False, 0)


def test_a_refusal_is_told_at_once(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    (app.folder / "app.yml").write_text("bad")
    monkeypatch.setattr(app.step, "run", app.reload(stamp=2000, good=0))
    reason, reloaded, refused = app.take_up()
    assert reason == f"refuses {app.folder} and goes on with what it had"
    assert (reloaded, refused) == (True, True)


def test_an_earlier_refusal_is_not_taken_for_a_new_one(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    (app.folder / "app.yml").write_text("good again")
    app.says(2000, good=0)
    looks = iter([(2000.0, False), (2000.0, False), (time.time() + 1, True)])
    monkeypatch.setattr(app.step, "loaded", lambda _: next(looks))
    assert app.take_up() == (None, True, False)


def test_a_program_that_never_answers_the_reload_is_told(app: App) -> None:
    (app.folder / "app.yml").write_text("b")
    reason, reloaded, refused = app.take_up()
    assert "did not within 1 s" in reason
    assert (reloaded, refused, app.reloads) == (True, True, 1)


def test_a_page_without_the_metric_proves_nothing(app: App) -> None:
    app.site.pages["/metrics"] = (200, "up 1\n")
    assert app.take_up() == ("does not say when it loaded its configuration", False, False)
