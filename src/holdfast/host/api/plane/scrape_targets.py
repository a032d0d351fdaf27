"""Serving addresses as scrape targets: HTTP service discovery for Prometheus.

    scrape_configs:
      - job_name: holdfast
        http_sd_configs:
          - url: https://HOST:6443/apis/holdfast.dev/v1/targets?port=metrics

There is one target for each address of the selected Endpoints, with its properties as labels.
`port` selects one of the named ports; label and field selectors are those of a list. Prometheus
polls, and keeps its targets while it gets no answer, so this reads the hub's memory: it needs no
store, and is as new as the watches of this server are.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from aiohttp import web

from holdfast.host.api.call import Call
from holdfast.host.api.objects.scope import selection
from holdfast.host.api.plain import JSON_HEADERS
from holdfast.model.access.rights import Permission
from holdfast.model.encoding.wire import readable
from holdfast.model.kinds.endpoints import Endpoints, list_of
from holdfast.observe.entry_table import selected_entries

# Prometheus drops labels with this prefix after relabelling.
_PREFIX = "__meta_holdfast_"
_ENCODER = msgspec.json.Encoder()


async def list_(call: Call) -> web.StreamResponse:
    """All targets of a namespace, or of all namespaces."""
    call.demand_authenticated()
    # Monitoring may list targets, which show addresses only, without the right to list Endpoints.
    if not call.services.rights.may(
        call.identity, Permission("list", "targets", "", call.namespace)
    ):
        call.demand("list")
    chosen, port = selection(call), call.query.get("port", "")
    response = web.StreamResponse(headers=JSON_HEADERS)
    await response.prepare(call.request)
    await response.write(b"[")
    comma, share = b"", call.services.loop_share
    picture = call.services.hub.candidates(chosen)
    for entry in selected_entries(picture, chosen):
        # An Endpoints object has at most a thousand addresses; other requests run between two.
        if share.is_over:
            await share.rest()
        endpoints = readable(Endpoints, entry.data)
        found = list(_targets(endpoints, port)) if endpoints is not None else []
        if found:
            await response.write(comma + b",".join(found))
            comma = b","
    await response.write(b"]")
    await response.write_eof()
    return response


def _targets(of: Endpoints, port: str) -> Iterator[bytes]:
    workload, _ = list_of(of.name)
    for endpoint in of.endpoints:
        for name, address in endpoint.ports.items():
            if port and name != port:
                continue
            labels = {
                f"{_PREFIX}namespace": of.namespace,
                f"{_PREFIX}workload": workload,
                f"{_PREFIX}replica": endpoint.replica,
                f"{_PREFIX}node": endpoint.node,
                f"{_PREFIX}zone": endpoint.zone,
                f"{_PREFIX}port": name,
            }
            yield _ENCODER.encode({"targets": [address], "labels": labels})
