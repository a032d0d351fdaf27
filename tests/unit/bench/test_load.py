"""The parts of the load benchmark that decide what its figures mean."""

from __future__ import annotations

import os
import random
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.load_fairness import fair_share
from bench.load_generator import Piece, Source, Stream
from bench.load_intents import Intents
from bench.load_plane import TENANTS, intents, mix, numbered, renewal
from bench.load_plot import Curve, Panel, Span, draw
from bench.load_results import Results
from bench.load_stall import normal, recovery_s
from bench.load_trace import Slice, Trace, causes
from holdfast.model.requests import RenewLease, Term


@pytest.mark.parametrize(
    "total, demands, share",
    [
        # No tenant with less wants more: all are equal.
        (100.0, {"a": 500.0, "b": 30.0, "c": 30.0, "d": 30.0}, 25.0),
        # What the others do not want is left to those that do.
        (100.0, {"a": 500.0, "b": 10.0, "c": 10.0}, 80.0),
        (100.0, {"a": 5.0, "b": 10.0}, 5.0),
    ],
)
def test_a_fair_share_is_what_is_left_when_no_tenant_with_less_wants_more(
    total: float, demands: dict[str, float], share: float
) -> None:
    assert fair_share(total, demands, "a") == pytest.approx(share)


_RENEWAL = renewal(Term("scheduler:s0", 1))


@pytest.mark.parametrize(
    "pieces", [mix("acme"), intents("acme", "run"), (numbered(_RENEWAL, 1), numbered(_RENEWAL, 99))]
)
def test_a_request_says_its_true_length_whatever_its_number(pieces: tuple[Piece, ...]) -> None:
    """A number that changed the length would leave the rest of one request to the next."""
    for piece in pieces:
        for count in (0, 7, 123_456):
            text = piece.filled(count)
            head, _, body = text.partition(b"\r\n\r\n")
            said = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            assert len(body) == int(said or 0)
            assert b"#" not in text
            assert b"@" not in text


def test_a_lease_is_renewed_with_growing_numbers_in_all_runs() -> None:
    """A renewal that is not above the last one is refused, and the load would be refusals."""
    texts = [numbered(_RENEWAL, run).filled(count) for run in (1, 2, 50) for count in (0, 1, 999)]
    bodies = [text.partition(b"\r\n\r\n")[2] for text in texts]
    numbers = [msgspec.json.decode(body, type=RenewLease).number for body in bodies]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > 0


def source(*rates: tuple[float, float]) -> Source:
    piece = Piece("read", b"GET /# HTTP/1.1\r\n\r\n", is_read=True)
    return Source(0, Stream("a", "", 1, (piece,), tuple(rates)), {"read": 0}, 1)


def test_arrivals_follow_the_rates_and_not_the_answers() -> None:
    """Coordinated omission begins where an answer decides when the next request is due."""
    it = source((0.0, 100.0), (10.0, 0.0), (20.0, 1_000.0))
    at: float | None = 0.0
    times = []
    while (at := it.next_arrival(at or 0.0)) is not None and at < 30.0:
        times.append(at)
    assert len([x for x in times if x < 10.0]) == pytest.approx(1_000, rel=0.15)
    assert not [x for x in times if 10.0 <= x < 20.0]
    assert len([x for x in times if x >= 20.0]) == pytest.approx(10_000, rel=0.05)


def test_an_intent_goes_through_the_retry_machine_that_ships() -> None:
    """Refused, it waits at least for as long as the refusal says, and its requests are counted."""
    owner = Intents(random.Random(1))
    course = owner.begin(b"GET /x", b"", is_read=True)
    found = course.answered(429, 2_000, b"{}", 100.0)
    assert found is not None
    at, text = found
    assert at >= 102.0
    assert text == b""
    assert course.resume(at) == (at, b"GET /x")
    assert course.answered(200, 0, b"", at + 1) is None
    assert owner.counted() == {"begun": 1, "requests": 2, "succeeded": 1}


def test_a_lost_answer_is_looked_for_before_anything_is_sent_again() -> None:
    """What is found under its operation id is done. [E5]"""
    owner = Intents(random.Random(1))
    text = b"POST /x HTTP/1.1\r\nX-Holdfast-Operation: op-7\r\n\r\n"
    course = owner.begin(text, b"GET /x/7", is_read=False)
    found = course.answered(0, 0, b"", 1.0)
    assert found is not None
    assert course.resume(found[0]) == (found[0], b"GET /x/7")
    assert course.answered(200, 0, b'{"operations":["op-7"]}', 3.0) is None
    assert owner.counted()["succeeded"] == 1


def test_latencies_count_from_when_a_request_was_due(tmp_path: Path) -> None:
    """Also of what waited in the generator, since the server was slow with those before."""
    path = tmp_path / "seen.npz"
    report = {
        "began": 10.0,
        "cpu_s": 1.0,
        "took_s": 2.0,
        "pauses": [],
        "intents": [],
        "kinds": ["read"],
    }
    np.savez(
        path,
        due=np.array([10.0, 10.5]),
        sent=np.array([10.0, 11.0]),
        done=np.array([10.1, 11.1]),
        code=np.array([200, 429]),
        kind=np.array([0, 0]),
        stream=np.array([0, 0]),
        report=msgspec.json.encode(report),
    )
    seen = Results(path, ["a"])
    assert [round(it) for it in seen.latency_ms] == [100, 600]
    assert seen.rate(seen.good, 0.0, 1.0) == 1.0
    assert seen.codes(seen.stream("a")) == {"200": 1, "429": 1}


def test_a_chart_is_an_image_with_all_its_curves(tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    curves = [Curve("a & b", (0.0, 1.0), (1.0, 100.0)), Curve("c", (0.0, 1.0), (3.0, 2.0))]
    panels = (Panel("left", "ms", curves, is_log=True, limit=50.0), Panel("right", "1/s", curves))
    draw(path, "a < b", panels, 2.0, (Span("storm", 0.5, 1.0),))
    root = ET.parse(path).getroot()
    assert len(root.findall(".//{*}polyline")) == 4
    assert "a & b" in [it.text for it in root.findall(".//{*}text")]


def test_a_plane_that_is_never_normal_again_has_no_time_of_recovery(tmp_path: Path) -> None:
    """Otherwise the end of the looking would pass for the end of the trouble."""
    path = tmp_path / "seen.npz"
    due = np.arange(0.0, 60.0, 0.05)
    report = {
        "began": 0.0,
        "cpu_s": 1.0,
        "took_s": 60.0,
        "pauses": [],
        "intents": [],
        "kinds": ["read"],
    }

    def seen(well_from_s: float) -> Results:
        np.savez(
            path,
            due=due,
            sent=due,
            done=due + 0.01,
            code=np.where((due < 10.0) | (due >= well_from_s), 200, 429),
            kind=np.zeros(len(due), int),
            stream=np.zeros(len(due), int),
            report=msgspec.json.encode(report),
        )
        return Results(path, list(TENANTS))

    assert recovery_s(normal(seen(100.0), 20.0, 20.0, 60.0)) is None
    # Too short a time to say that it stayed so.
    assert recovery_s(normal(seen(50.0), 20.0, 20.0, 60.0)) is None
    found = recovery_s(normal(seen(30.0), 20.0, 20.0, 60.0))
    assert found is not None
    assert 9 <= found <= 11


def test_a_slow_request_is_put_down_to_who_stood_still(tmp_path: Path) -> None:
    """The generator, another process on the processor, a long computation, or the store."""
    began = 10.0
    due = began + np.arange(4.0)
    report = {"began": began, "cpu_s": 1.0, "took_s": 4.0, "intents": [], "kinds": ["read"]}
    report["pauses"] = [(0.0, 0.1)]
    path = tmp_path / "run.npz"
    np.savez(
        path,
        due=due,
        sent=due,
        done=due + 0.1,
        code=np.full(4, 200),
        kind=np.zeros(4, int),
        stream=np.zeros(4, int),
        report=msgspec.json.encode(report),
    )
    seen, trace = Results(path, ["a"]), Trace(os.getpid())
    trace.slices = [
        Slice(began + at, began + at + 0.1, ran, delayed)
        for at, ran, delayed in ((0, 0.1, 0.0), (1, 0.0, 0.1), (2, 0.1, 0.0), (3, 0.0, 0.0))
    ]
    found = causes(seen, seen.good, trace, 50.0)
    names = ("generator", "processor", "computing", "elsewhere")
    assert [found[it] for it in names] == [1, 1, 1, 1]
    assert not any(causes(seen, seen.good, trace, 200.0)[it] for it in names)
