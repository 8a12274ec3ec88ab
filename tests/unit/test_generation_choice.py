"""What a node goes back to: by itself only to what was ready, and on request to what is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.role_code import manifest_code, shared_code

manifest_code()
choice = shared_code("generation_choice")


def told(*outcomes: str) -> list[dict[str, Any]]:
    """Generations from words such as `ready:A`: outcome and content; `A>1` went back to 1."""
    found = []
    for number, word in enumerate(outcomes, 1):
        outcome, _, content = word.partition(":")
        content, _, back = content.partition(">")
        one = {"number": number, "run": f"r{number}", "outcome": outcome, "content": content, "reason": "torn"}
        found.append({**one, "back_to": int(back) if back else None})
    return found


@pytest.mark.parametrize(
    ("outcomes", "run", "number"),
    [
        (["ready:A", "failed:B"], "r2", 1),
        (["found:A", "failed:B"], "r2", 1),
        # A smoke test that fails comes after every unit was ready.
        (["ready:A", "ready:B"], "r2", 1),
        (["ready:A", "failed:B", "failed:C"], "r3", 1),
        (["ready:A", "interrupted:B", "failed:C"], "r3", 1),
        # An earlier run installed it and was interrupted; this one found nothing to install.
        (["ready:A", "failed:B"], "r9", 1),
        (["ready:A", "rolled_back:B", "ready:A>1", "failed:C"], "r4", 3),
        (["ready:A", "damaged:B", "failed:C"], "r3", 1),
    ],
)
def test_a_failed_upgrade_goes_back_to_what_was_ready_last(outcomes: list[str], run: str, number: int) -> None:
    target, why = choice.by_itself(told(*outcomes), run)
    assert (target["number"], why) == (number, None)


@pytest.mark.parametrize(
    ("outcomes", "run", "said"),
    [
        ([], "r1", "no generation is on record"),
        (["failed:A"], "r1", "no earlier generation was ever ready"),
        (["failed:A", "interrupted:B", "failed:C"], "r3", "no earlier generation was ever ready"),
        (["ready:A"], "r9", "this upgrade installed nothing: generation 1 stays"),
        (["ready:A", "ready:B", "failed:B"], "r3", "its files are those of generation 2"),
        (["ready:A", "damaged:B"], "r2", "torn"),
    ],
)
def test_where_there_is_nothing_to_go_back_to_it_says_why(outcomes: list[str], run: str, said: str) -> None:
    target, why = choice.by_itself(told(*outcomes), run)
    assert target is None
    assert said in why


@pytest.mark.parametrize(
    ("outcomes", "to", "number"),
    [
        (["ready:A", "ready:B"], 0, 1),
        (["ready:A", "ready:B", "ready:A>1"], 0, 2),
        (["ready:A", "ready:B", "ready:A>1", "ready:B>2"], 0, 3),
        (["ready:A", "ready:B", "ready:C"], 1, 1),
        (["ready:A", "ready:B", "failed:C"], 0, 2),
        (["ready:A", "failed:B", "ready:C"], 0, 1),
        (["ready:A", "failed:B", "ready:C"], 2, 2),
        (["ready:A", "installing:B"], 0, 1),
        # Half of a rollback is finished.
        (["ready:A", "ready:B", "installing:A>1"], 0, 3),
        (["ready:A", "ready:B", "interrupted:A>1"], 0, 3),
        # What is there is installed again where one asks for it.
        (["ready:A", "ready:B"], 2, 2),
        (["ready:A", "damaged:B"], 0, 1),
    ],
)
def test_an_operator_gets_what_is_asked_for(outcomes: list[str], to: int, number: int) -> None:
    assert choice.on_request(told(*outcomes), to)["number"] == number


@pytest.mark.parametrize(
    ("outcomes", "to", "said"),
    [
        ([], 0, "no generation is on record"),
        (["ready:A"], 0, "no earlier generation"),
        (["ready:A", "rolled_back:B", "ready:A>1"], 0, "no earlier generation"),
        (["ready:A", "ready:B"], 7, "there is no generation 7; there are 1, 2"),
        (["damaged:A", "ready:B"], 1, "torn"),
    ],
)
def test_what_cannot_be_had_is_refused(outcomes: list[str], to: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        choice.on_request(told(*outcomes), to)
