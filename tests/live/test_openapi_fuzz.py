"""Whatever the OpenAPI document allows, and what it does not, the server answers without a 5xx."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from holdfast.host.api.plane.openapi import document
from tests.live.plane_process import PlaneProcess
from tests.patience import PATIENCE_S
from tests.scale import scaled

# One server for all operations, so all of them on one worker.
pytestmark = [
    pytest.mark.xdist_group("openapi"),
    # Schemathesis and the libraries that it stands on warn of each other's changes.
    pytest.mark.filterwarnings("default"),
]
OPERATIONS = [
    found.ok() for found in schemathesis.openapi.from_dict(document()).get_all_operations()
]
EXAMPLES = scaled(2, 8)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneProcess]:
    process = PlaneProcess(tmp_path_factory.mktemp("fuzz") / "data")
    try:
        asyncio.run(process.start())
        yield process
    finally:
        process.kill()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_no_request_breaks_the_server(operation: Any, plane: PlaneProcess) -> None:
    pki = plane.data / "pki"

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def answers(case: schemathesis.Case) -> None:
        # A watch has no end, and what it may be asked is asked of lists as well.
        case.query.pop("watch", None)
        response = case.call(
            base_url=plane.url,
            cert=(str(pki / "admin.crt"), str(pki / "admin.key")),
            verify=str(pki / "ca.crt"),
            timeout=PATIENCE_S,
        )
        assert response.status_code < 500, response.text

    answers()
