"""The warnings of a server about the store that it opens."""

from __future__ import annotations

import pytest

from holdfast.host.server.store_opening import unprotected


@pytest.mark.parametrize(
    "endpoints, is_warned",
    [
        (("127.0.0.1:2379",), False),
        (("localhost:2379", "http://[::1]:2379"), False),
        (("https://etcd-1.example:2379",), False),
        (("etcd-1.example:2379",), True),
        (("http://10.0.0.7:2379",), True),
        (("https://10.0.0.7:2379", "10.0.0.8:2379"), True),
        (("[fd00::7]:2379",), True),
    ],
)
def test_etcd_over_a_network_without_tls_is_warned_of(
    endpoints: tuple[str, ...], is_warned: bool
) -> None:
    """All users of that network could read every Secret."""
    told = unprotected(endpoints)
    assert bool(told) is is_warned
    assert all("--etcd-ca-file" in it for it in told)
    # Only what is not protected is named.
    assert not any("https://" in it for it in told)
