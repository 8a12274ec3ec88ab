"""What the charts show."""

from __future__ import annotations

from typing import Any

from tests.unit import run_documents
from tests.unit.report_figures import Reader
from vllm_node.bench.report import drawings
from vllm_node.bench.report.page import Chart, Figure


def rows(document: dict[str, Any]) -> list[list[Any]]:
    chart = drawings.timeline(document)
    assert isinstance(chart, Chart)
    assert chart.table is not None
    return [[cell.value if isinstance(cell, Figure) else cell for cell in row] for row in chart.table.rows]


def one_step(**client: Any) -> dict[str, Any]:
    return run_documents.run([run_documents.step(8.0, [run_documents.client(**client)])])


def test_a_point_for_each_second_of_the_window() -> None:
    found = rows(one_step())
    assert len(found) == 15
    # Requests are due from half a second after the window began, ten a second.
    assert found[0] == ["0 s, 8 requests/s, repeat 1", 5, 4, 2.0, 0.0, 0.2, "unobservable"]
    assert found[7][4] == 1.0
    assert found[9][6] == 1.0


def test_a_second_that_was_cut_short_is_left_out() -> None:
    assert len(rows(one_step(seconds=12.6))) == 12


def test_long_windows_keep_their_peaks() -> None:
    found = rows(run_documents.run([run_documents.step(8.0, [run_documents.client(seconds=960.0)], [run_documents.server(960)])]))
    assert len(found) == 240
    assert found[1][4] == 1.0, "the one second in which a request waited"
    assert found[2][6] == 1.0, "the one preemption"
    assert found[1][1] == 10, "a rate is a mean"


def test_windows_stand_in_the_order_in_which_they_ran_with_the_gap_between_them() -> None:
    late = run_documents.step(2.0, [run_documents.client(start=run_documents.STARTED_AT_S + 100)])
    early = run_documents.step(4.0, [run_documents.client()])
    names = [row[0] for row in rows(run_documents.run([late, early]))]
    assert names[0] == "0 s, 4 requests/s, repeat 1"
    assert names[15] == "100 s, 2 requests/s, repeat 1"


def test_without_figures_of_the_server_the_client_s_own_look_is_shown() -> None:
    client = run_documents.client()
    client["server"] = {"second": [0.5, 1.5], "running": [3.0, 4.0], "waiting": [0.0, 6.0], "failures": 0, "error": None}
    found = rows(run_documents.run([run_documents.step(8.0, [client], [None])]))
    assert [row[3:5] for row in found[:3]] == [[3.0, 0.0], [4.0, 6.0], ["unobservable", "unobservable"]]


def test_distributions_add_up_the_repeats_that_count() -> None:
    void = run_documents.client(run_documents.answers(120, 9.0), late_s=0.5)
    document = run_documents.run([run_documents.step(2.0, [*run_documents.repeated((0.1, 0.1)), void])])
    chart = drawings.distributions(document)
    assert chart is not None
    first = chart.figures[0]
    assert sum(count for _, count in first.value) == 240
    assert max(bound for bound, _ in first.value) < 1


def test_requests_that_timed_out_keep_the_line_down() -> None:
    assert drawings._shares([[0.1, 3], [0.2, 3]], 10) == [(0.1, 0.0), (0.1, 0.3), (0.2, 0.6)]


def test_nothing_to_draw() -> None:
    assert drawings.timeline(run_documents.run([])) is None
    assert drawings.distributions(run_documents.run([])) is None
    assert drawings.distributions(run_documents.run([run_documents.step(1.0, [run_documents.client([])])])) is None


def test_a_name_with_marks_of_svg_is_text() -> None:
    document = one_step()
    chart = drawings.timeline(document)
    assert chart is not None
    read = Reader(chart.draw())
    assert read.problems == []
    assert read.of("title")[0][2] == ["Timeline"]
