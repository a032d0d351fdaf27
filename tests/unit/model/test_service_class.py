"""The service class of a replica, as Kubernetes names it."""

from __future__ import annotations

import pytest

from holdfast.model.kinds.template import Resources, Template
from holdfast.model.service_class import CLASS_LOSS, ServiceClass, service_class

GUARANTEED, BURSTABLE, BEST_EFFORT = ServiceClass


@pytest.mark.parametrize(
    "asks, limits, expected",
    [
        ({}, {}, BEST_EFFORT),
        ({"disk": "1Gi"}, {"disk": "2Gi"}, BEST_EFFORT),
        ({"cpu": "0.0", "memory": "0Mi"}, {}, BEST_EFFORT),
        ({"cpu": 1}, {}, BURSTABLE),
        ({}, {"memory": "1Gi"}, BURSTABLE),
        ({"cpu": 1, "memory": "1Gi"}, {}, BURSTABLE),
        ({"cpu": 1, "memory": "1Gi"}, {"cpu": 2, "memory": "1Gi"}, BURSTABLE),
        ({"cpu": 1, "memory": "1Gi"}, {"cpu": 1, "memory": "2Gi"}, BURSTABLE),
        ({"cpu": 1}, {"cpu": 1}, BURSTABLE),
        ({"memory": "1Gi"}, {"memory": "1Gi"}, BURSTABLE),
        ({"cpu": "1000m", "memory": "1024Mi"}, {"cpu": 1, "memory": "1Gi"}, GUARANTEED),
        # A memory limit that is left out is the request.
        ({"cpu": 1, "memory": "1Gi"}, {"cpu": 1}, GUARANTEED),
    ],
)
def test_the_class_follows_from_requests_and_limits(
    asks: dict[str, str | int | float],
    limits: dict[str, str | int | float],
    expected: ServiceClass,
) -> None:
    """[A3]"""
    of = Template(resources=Resources(**asks), limits=Resources(**limits))
    assert service_class(of) is expected


def test_a_firmer_class_is_a_greater_loss() -> None:
    """[A3]"""
    assert list(CLASS_LOSS) == list(ServiceClass)
    assert sorted(CLASS_LOSS.values(), reverse=True) == list(CLASS_LOSS.values())
