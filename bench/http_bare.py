"""A bare aiohttp server over TLS that answers everything with one body: the bound of api.get.

`python -m bench.http_bare CERTIFICATE KEY BODY` prints its port and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from pathlib import Path

from aiohttp import web


async def serve(certificate: str, key: str, body: bytes) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body, headers={"Content-Type": "application/json"})

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]).read_bytes()))
