"""Our kinds under the names that kubectl's own commands ask for."""

from __future__ import annotations

import pytest

from holdfast.host.api.objects.core_names import EVENT, OURS, POD, own_field_selector


@pytest.mark.parametrize(
    "asked, meant",
    [
        ("involvedObject.kind=Pod", "involvedObject.kind=Replica"),
        (
            "involvedObject.uid=u,involvedObject.kind=Pod,involvedObject.name=web-0-0",
            "involvedObject.uid=u,involvedObject.kind=Replica,involvedObject.name=web-0-0",
        ),
        ("involvedObject.kind=Namespace", "involvedObject.kind=Tenant"),
        ("involvedObject.kind=Node", "involvedObject.kind=Node"),
        ("involvedObject.kind!=Pod", "involvedObject.kind!=Pod"),
        ("", ""),
    ],
)
def test_the_events_of_a_pod_are_those_of_its_replica(asked: str, meant: str) -> None:
    """Only where events are shown as those of the core group."""
    assert own_field_selector(EVENT, asked) == meant
    assert own_field_selector(OURS, asked) == own_field_selector(POD, asked) == asked
