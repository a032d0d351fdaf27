"""Small languages: selectors, quantities, schedules, times, versions, what a client accepts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from holdfast.host.api.call import parse_query
from holdfast.host.api.objects import negotiation
from holdfast.host.api.plane.log_routes import since
from holdfast.host.component import options
from holdfast.host.server import client_timeouts
from holdfast.model import quantity
from holdfast.model.encoding import resource_versions
from holdfast.model.errors import HoldfastError, Invalid, Rejected
from holdfast.model.kind_declaration import Kind
from holdfast.model.registry import KINDS
from holdfast.model.selection import selectors
from holdfast.model.selection.field_selector import parse_field_selector
from holdfast.model.selection.selector_text import label_selector_text, parse_label_selector
from holdfast.model.workload import cron
from holdfast.model.workload.cron import last_fire, next_fire
from tests.fuzz.nasty import numbers, texts, words
from tests.fuzz.targets import Target, refused

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def _labels(text: str) -> str:
    try:
        found = parse_label_selector(text)
    except Invalid as error:
        return refused(error)
    assert parse_label_selector(label_selector_text(found)) == found
    selectors.selects(found, {"a": "1", "app": "web"})
    return "read" if found.match_expressions else "everything"


def _fields(case: tuple[str, Kind]) -> str:
    text, kind = case
    try:
        found = parse_field_selector(text, kind.struct)
    except Invalid as error:
        return refused(error)
    again = ",".join(f"{it.path}{'=' if it.equal else '!='}{_escaped(it.value)}" for it in found)
    assert parse_field_selector(again, kind.struct) == found
    return "read" if found else "everything"


def _escaped(value: str) -> str:
    for sign in ("\\", ",", "="):
        value = value.replace(sign, f"\\{sign}")
    return value


def _quantity(case: tuple[str, Any]) -> str:
    resource, value = case
    try:
        units = quantity.demand(resource, value)
        floor = quantity.capacity(resource, value)
    except Invalid as error:
        return refused(error)
    assert 0 <= floor <= units <= floor + 1
    assert quantity.demand(resource, quantity.render(resource, units)) == units
    return "read"


def _cron(text: str) -> str:
    try:
        found = cron.parse(text)
    except Invalid as error:
        return refused(error)
    first = next_fire(found, NOW, lambda _: timedelta(hours=1))
    assert first is not None
    assert first > NOW
    last = last_fire(found, NOW, first, lambda _: timedelta(hours=1))
    assert last == first
    return "read"


def _version(text: str) -> str:
    try:
        found = resource_versions.parse_version(text)
    except Invalid as error:
        return refused(error)
    number = 2 * found.revision + found.is_complete
    assert resource_versions.parse_version(str(number)) == found
    return "read"


def _time(text: str) -> str:
    read = "refused"
    try:
        told = since(None, text, NOW)
        assert not text or len(told) == 30
        read = "read"
    except Rejected as error:
        refused(error)
    for reader in (options.duration, client_timeouts.seconds):
        try:
            reader("--x", text)
            read = "read"
        except Invalid:
            continue
    return read


def _accept(case: tuple[str, str]) -> str:
    try:
        return negotiation.shape_of(*case).partition(":")[0] or "json"
    except Rejected as error:
        return refused(error)


def _query(text: str) -> str:
    try:
        return "read" if parse_query(text) else "empty"
    except HoldfastError:
        return "refused"


_MEDIA = words("application/json", ";as=Table", ";v=v1", ";g=meta.k8s.io", ",", "*/*", ";q=0.5")

_FIELD = words("*", "0", "5", "1-5", "*/5", ",", "mon", "feb", "29", "31", "?", "-", "/")
_FIVE = st.lists(_FIELD, min_size=5, max_size=5).map(" ".join)

_RESOURCES = ("cpu", "memory", "gpu", "replicas")

TARGETS = (
    Target(
        "label selectors",
        words("a", "app", "=", "!", " in ", "(", ",", ")", "notin", " "),
        _labels,
        seeds=("app=web,tier!=db", "a in (b,c),!d,e", "x notin (y),n>3,m<-4", "holdfast.dev/a==b"),
    ),
    Target(
        "field selectors",
        st.tuples(
            words("metadata.name", "status.state", "=", "!=", ",", "\\,", "\\", "web"),
            st.sampled_from(KINDS),
        ),
        _fields,
        seeds=("metadata.name=web-0", "metadata.name!=a,metadata.namespace==b", "metadata.uid=\\,"),
        of=lambda text, rng: (text, rng.choice(KINDS)),
    ),
    Target(
        "quantities",
        st.tuples(
            st.sampled_from(_RESOURCES),
            words("1", "0.5", ".", "m", "Gi", "e3", "E", "-", "+", "n") | numbers,
        ),
        _quantity,
        seeds=("500m", "1.5Gi", "2e3", "0.0001", "+.5", "3E", "12345678901234567890n", "1e-18"),
        of=lambda text, rng: (rng.choice(_RESOURCES), text),
    ),
    Target(
        "cron schedules",
        _FIVE | words("*", " ", "0 ", "*/5 ", "mon", "@daily", "? "),
        _cron,
        seeds=("*/5 * * * *", "0 0 29 2 *", "1-5,7 3/4 1 jan-mar fri-sun", "@weekly", "0 12 ? * 7"),
    ),
    Target(
        "resource versions",
        words("0", "1", "12", "-", "+", " ", "e", "."),
        _version,
        seeds=("0", "17", "18446744073709551615"),
    ),
    Target(
        "times",
        words("2026-11-16", "T", "12:00:00", "Z", "+01:00", ".5", "90", "s", "h", "d"),
        _time,
        seeds=("2026-11-16T12:00:00Z", "2026-W47-1T12:00:00,5+01:30", "90s", "2d", "1.5", "1e2"),
    ),
    Target(
        "accepted types",
        st.tuples(_MEDIA, texts),
        _accept,
        seeds=(
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
            "text/html, */*;q=1",
        ),
        of=lambda text, rng: (text, rng.choice(("", "None", "Object", "x"))),
    ),
    Target(
        "queries",
        words("a=b", "&", "=", "%41", "+", ";", "watch=1"),
        _query,
        seeds=("limit=500&labelSelector=a%3Db", "command=a&command=b+c", "a=%C3%A9&&b"),
    ),
)
