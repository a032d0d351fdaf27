"""People who sign in at an OpenID Connect issuer, over real TLS: the issuer's, and the plane's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from holdfast.host.oidc import fetching
from holdfast.host.oidc.fetching import DISCOVERY, DOCUMENT_BYTES_MAX, KeyFetcher
from holdfast.host.oidc.issuer_config import Issuer
from holdfast.host.oidc.issuers import Issuers, KnownIssuer
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.model.access.credential_life import revocation_name
from holdfast.model.kinds.access import Revocation, RevocationSpec
from holdfast.model.meta import ObjectMeta
from tests.lines import Line, Wish
from tests.live.plane_process import PlaneProcess, until
from tests.oidc_issuer import KEYS, HttpsIssuer, Signer
from tests.patience import PATIENCE_S, STORY_S

GROUP = "/apis/holdfast.dev/v1"
MINE, THEIRS = (f"{GROUP}/namespaces/{it}/workloads" for it in ("default", "risk"))


def claims(issuer: HttpsIssuer, **more: Any) -> dict[str, Any]:
    now_s = time.time()
    base = {"iss": issuer.url, "aud": "holdfast", "sub": "ann", "iat": now_s, "exp": now_s + 900}
    return {**base, "groups": ["team"], **more}


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def played() -> None:
        await story()

    asyncio.run(asyncio.wait_for(played(), STORY_S))


class Rig:
    """A plane that accepts the tokens of one issuer."""

    def __init__(self, plane: PlaneProcess, issuer: HttpsIssuer) -> None:
        self.plane, self.issuer = plane, issuer
        self._ca = CertificateAuthority.open(plane.data / "pki").pem

    def line(self, token: str) -> Line:
        return Line(self.plane.url, self._ca, None, token)

    async def code(self, token: str, path: str = MINE) -> int:
        async with self.line(token) as line:
            return (await line.send_patiently(Wish("GET", path))).code

    async def until_code(self, token: str, wanted: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while await self.code(token) != wanted:
            assert time.monotonic() < deadline, f"no {wanted} came"
            await asyncio.sleep(0.1)


@asynccontextmanager
async def running(folder: Path, *signers: Signer) -> AsyncIterator[Rig]:
    async with HttpsIssuer(folder / "issuer", *signers) as issuer:
        config = {
            "issuer": issuer.url,
            "audiences": ["holdfast"],
            "userPrefix": "corp:",
            "groupsPrefix": "corp:",
            "groupsClaim": "groups",
            "tenants": {"team": ["default"]},
            "caFile": str(issuer.ca_file),
            "skewSeconds": 0,
        }
        file = folder / "issuers.yaml"
        file.write_bytes(msgspec.json.encode({"issuers": [config]}))
        plane = PlaneProcess(folder / "plane", "--oidc", str(file))
        await plane.start()
        try:
            yield Rig(plane, issuer)
        finally:
            await plane.stop()


def test_a_person_of_an_issuer_may_what_the_mapping_gives_without_a_request_per_call(
    tmp_path: Path,
) -> None:
    """Who is let in, who is not, what ends an open watch, a key that is new, and an issuer that is
    away."""

    async def story() -> None:
        signer, rsa_signer, later = Signer("one"), Signer("two", is_rsa=True), Signer("three")
        async with running(tmp_path, signer, rsa_signer) as rig:
            issuer = rig.issuer
            token = signer.token(claims(issuer))
            await rig.until_code(token, 200)
            assert await rig.code(rsa_signer.token(claims(issuer))) == 200
            assert await rig.code(token, THEIRS) == 403
            assert await rig.code(token, f"{GROUP}/nodes") == 403
            await _hostile(rig, signer)
            await _asked_often(rig, token)
            await _stream_ends(rig, signer)
            await _rotation(rig, signer, later)
            await _revoked(rig, later)

    play(story)


async def _hostile(rig: Rig, signer: Signer) -> None:
    masters = ["system:masters", "tenant:risk"]
    assert await rig.code(signer.token(claims(rig.issuer, groups=masters))) == 403
    for hostile in (
        Signer("one").token(claims(rig.issuer)),
        signer.token(claims(rig.issuer, exp=time.time() - 1)),
        signer.token(claims(rig.issuer, aud="other")),
        signer.token(claims(rig.issuer), alg="none"),
        signer.token(claims(rig.issuer, iss="https://other.example")),
    ):
        assert await rig.code(hostile) == 401


async def _asked_often(rig: Rig, token: str) -> None:
    before = rig.issuer.asked.copy()
    async with rig.line(token) as line:
        codes = [(await line.send_patiently(Wish("GET", MINE))).code for _ in range(200)]
    assert set(codes) == {200}
    # One regular refresh may fall into it; two hundred requests cause none.
    assert (rig.issuer.asked - before).total() <= 4


async def _stream_ends(rig: Rig, signer: Signer) -> None:
    """A watch ends with the token that opened it."""
    token = signer.token(claims(rig.issuer, exp=time.time() + 5))
    async with rig.line(token) as line:
        reader, writer = await line.connection()
        writer.write(line.encode_request(Wish("GET", f"{MINE}?watch=true")))
        assert b" 200 " in await reader.readline()
        async with asyncio.timeout(PATIENCE_S):
            while not reader.at_eof():
                with suppress(ConnectionError):
                    if b"\r\n0\r\n" in b"\r\n" + await reader.read(4_096):
                        break
    assert await rig.code(token) == 401


async def _rotation(rig: Rig, old: Signer, new: Signer) -> None:
    """A key that is new is found by the first token that names it, one that is gone ends."""
    theirs, ours = old.token(claims(rig.issuer)), new.token(claims(rig.issuer))
    rig.issuer.signers = [new]
    await rig.until_code(ours, 200)
    assert await rig.code(theirs) == 401
    rig.issuer.is_away = True
    assert await rig.code(new.token(claims(rig.issuer, jti="away"))) == 200
    rig.issuer.is_away = False


async def _revoked(rig: Rig, signer: Signer) -> None:
    token = signer.token(claims(rig.issuer))
    assert await rig.code(token) == 200
    async with rig.plane.client() as client:
        made = Revocation(
            ObjectMeta(name=revocation_name("corp:ann")), spec=RevocationSpec(user="corp:ann")
        )
        await client.create(made)
    await rig.until_code(token, 401)
    assert await rig.code(signer.token(claims(rig.issuer, sub="bob"))) == 200


def test_a_file_of_issuers_that_is_wrong_keeps_the_server_from_starting(tmp_path: Path) -> None:
    """With the field in the sentence. [B5]"""

    async def story() -> None:
        file = tmp_path / "issuers.yaml"
        file.write_text("issuers:\n- {issuer: 'http://x', audiences: [a], userPrefix: 'x:'}\n")
        plane = PlaneProcess(tmp_path / "plane", "--oidc", str(file))
        plane.spawn()
        assert await plane.ended() == 1
        assert "issuers[0].issuer" in plane.log

    play(story)


# Fetching ----------------------------------------------------------------------------------------


def known(issuer: HttpsIssuer) -> KnownIssuer:
    config = Issuer(
        issuer=issuer.url, audiences=("holdfast",), user_prefix="", ca_file=str(issuer.ca_file)
    )
    return Issuers((config,)).known[issuer.url]


@asynccontextmanager
async def fetching_from(of: KnownIssuer, asked_again_s: float) -> AsyncIterator[KeyFetcher]:
    made = KeyFetcher(of, asked_again_s=asked_again_s)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_tokens_with_unknown_keys_do_not_decide_how_often_an_issuer_is_asked(
    tmp_path: Path,
) -> None:

    async def story() -> None:
        async with HttpsIssuer(tmp_path, Signer("one")) as issuer:
            of = known(issuer)
            async with fetching_from(of, asked_again_s=1.0):
                await until(lambda: len(of.keys) == 1, PATIENCE_S)
                for _ in range(1_000):
                    of.wants_keys()
                assert issuer.asked[KEYS] == 1
                await until(lambda: issuer.asked[KEYS] == 2, PATIENCE_S)
            of = known(issuer)
            async with fetching_from(of, asked_again_s=600.0):
                await until(lambda: len(of.keys) == 1, PATIENCE_S)
                for _ in range(50):
                    of.wants_keys()
                    await asyncio.sleep(0.01)
                assert issuer.asked[KEYS] == 3

    play(story)


def test_an_issuer_that_comes_back_is_read_and_its_last_keys_count_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[C7.5]"""
    monkeypatch.setattr(fetching, "PAUSE_MAX_S", 0.2)

    async def story() -> None:
        async with HttpsIssuer(tmp_path, Signer("one")) as issuer:
            of = known(issuer)
            issuer.is_away = True
            async with fetching_from(of, asked_again_s=0.0) as made:
                await until(lambda: made.failures > 1, PATIENCE_S)
                assert of.keys.age_s(time.monotonic()) is None
                issuer.is_away = False
                await until(lambda: len(of.keys) == 1, PATIENCE_S)
                issuer.is_away = True
                failures = made.failures
                of.wants_keys()
                await until(lambda: made.failures > failures, PATIENCE_S)
                assert len(of.keys) == 1

    play(story)


LIES: dict[str, Callable[[str], web.StreamResponse]] = {
    "another issuer": lambda url: web.json_response({"issuer": url + "x", "jwks_uri": url + KEYS}),
    "keys in the clear": lambda url: web.json_response(
        {"issuer": url, "jwks_uri": url.replace("https", "http") + KEYS}
    ),
    "keys in a file": lambda url: web.json_response(
        {"issuer": url, "jwks_uri": "file:///etc/passwd"}
    ),
    "a redirect": lambda url: web.Response(status=302, headers={"Location": url + "/elsewhere"}),
    "too much": lambda url: web.Response(body=b" " * (DOCUMENT_BYTES_MAX + 1)),
    "no JSON": lambda url: web.Response(text="<html>"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_discovery_document_that_does_not_belong_there_is_not_followed(
    tmp_path: Path, name: str
) -> None:
    """[B5]"""

    class Lying(HttpsIssuer):
        async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
            if request.path == DISCOVERY:
                self.asked[DISCOVERY] += 1
                return LIES[name](self.url)
            return await super()._answer(request)

    async def story() -> None:
        async with Lying(tmp_path, Signer("one")) as issuer:
            of = known(issuer)
            async with fetching_from(of, asked_again_s=600.0) as made:
                await until(lambda: made.failures > 0, PATIENCE_S)
            assert (len(of.keys), list(issuer.asked)) == (0, [DISCOVERY])

    play(story)


def test_an_issuer_with_another_authoritys_certificate_is_not_believed(tmp_path: Path) -> None:
    """[B5]"""

    async def story() -> None:
        async with HttpsIssuer(tmp_path, Signer("one")) as issuer:
            issuer.ca_file.write_bytes(CertificateAuthority.open(tmp_path / "theirs").pem)
            of = known(issuer)
            async with fetching_from(of, asked_again_s=600.0) as made:
                await until(lambda: made.failures > 0, PATIENCE_S)
            assert (len(of.keys), issuer.asked.total()) == (0, 0)

    play(story)
