"""What becomes of the tokens of issuers, and how old their keys are, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from holdfast.host.metrics import Labels, Metrics
from holdfast.host.oidc.fetching import Fetching
from holdfast.host.oidc.issuers import Issuers


def count(metrics: Metrics, issuers: Issuers, tasks: Sequence[Fetching]) -> None:
    """Add all of it to what the server counts. No label is chosen by who sends a token."""
    metrics.gauges(
        "oidc_tokens_total",
        "Tokens of OpenID Connect issuers that were shown, by what became of them.",
        ("issuer", "outcome"),
        lambda: [(labels, count) for labels, count in issuers.outcomes.items()],
        kind="counter",
    )
    metrics.gauges(
        "oidc_keys_age_seconds",
        "How long ago an OpenID Connect issuer told its keys; issuers that never did are left out.",
        ("issuer",),
        lambda: _ages(issuers),
    )
    metrics.gauges(
        "oidc_fetch_failures_total",
        "Times that the keys of an OpenID Connect issuer could not be fetched.",
        ("issuer",),
        lambda: [((it.issuer,), it.failures) for it in tasks],
        kind="counter",
    )


def _ages(issuers: Issuers) -> Iterable[tuple[Labels, float]]:
    now_s = time.monotonic()
    for name, known in issuers.known.items():
        age_s = known.keys.age_s(now_s)
        if age_s is not None:
            yield (name,), age_s
