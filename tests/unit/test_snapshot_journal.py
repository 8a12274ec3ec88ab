"""How large the journal may become is told by journald's own files, in their order, and by its disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.node_code import utils

GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path) -> Any:
    (tmp_path / "var/log/journal/0123").mkdir(parents=True)
    return utils("snapshot_host").Host(root=str(tmp_path))


def write(host: Any, path: str, *lines: str) -> None:
    place = Path(host.path(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("\n".join(lines) + "\n")


def probe(host: Any) -> Any:
    return utils("snapshot_journal").probe(host)


def test_without_a_setting_journalds_own_limits_hold(host: Any) -> None:
    found = probe(host)
    assert found["cap_bytes"] == min(found["total_bytes"] // 10, 4 * GIB)
    assert found["keep_free_bytes"] == min(found["total_bytes"] * 15 // 100, 4 * GIB)
    assert 0 < found["free_bytes"] <= found["total_bytes"]


@pytest.mark.parametrize(
    ("value", "cap"), [("64G", 64 * GIB), ("500M", 500 << 20), ("1024", 1024), ("2T", 2 << 40), ("many", None), ("", None)]
)
def test_a_setting_counts_where_journald_takes_it(host: Any, value: str, cap: int | None) -> None:
    write(host, "/etc/systemd/journald.conf", "[Journal]", f"SystemMaxUse={value}", "#SystemMaxUse=1K")
    found = probe(host)
    assert found["cap_bytes"] == (cap or min(found["total_bytes"] // 10, 4 * GIB))


def test_later_files_win_and_one_of_the_same_name_hides_the_other(host: Any) -> None:
    write(host, "/etc/systemd/journald.conf", "[Journal]", "SystemMaxUse=1G", "SystemKeepFree=7G")
    write(host, "/usr/lib/systemd/journald.conf.d/90-site.conf", "[Journal]", "SystemMaxUse=9G")
    write(host, "/etc/systemd/journald.conf.d/90-site.conf", "[Journal]", "SystemMaxUse = 3G")
    write(host, "/etc/systemd/journald.conf.d/50-a.conf", "[Journal]", "SystemMaxUse=2G", "[Other]", "SystemKeepFree=1K")
    write(host, "/etc/systemd/journald.conf.d/99-b.txt", "[Journal]", "SystemMaxUse=8G")
    found = probe(host)
    assert (found["cap_bytes"], found["keep_free_bytes"]) == (3 * GIB, 7 * GIB)


def test_what_it_uses_is_counted(host: Any) -> None:
    write(host, "/var/log/journal/0123/system.journal", "x" * 100_000)
    assert 100_000 <= probe(host)["used_bytes"] < 200_000


@pytest.mark.parametrize("storage", ["volatile", "none"])
def test_a_journal_in_memory_has_no_disk(host: Any, storage: str) -> None:
    write(host, "/etc/systemd/journald.conf", "[Journal]", f"Storage={storage}")
    assert probe(host) is None


def test_a_node_without_the_folder_keeps_it_in_memory(tmp_path: Path) -> None:
    assert probe(utils("snapshot_host").Host(root=str(tmp_path))) is None
