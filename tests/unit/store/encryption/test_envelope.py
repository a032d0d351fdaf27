"""What an encrypted record is bound to: its place, its header and its key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commit.record_encoding import decode
from holdfast.host.process.files import write_private
from holdfast.model.encoding import encrypted_records
from holdfast.model.encoding.encrypted_records import Header, frame, header_bytes, split_record
from holdfast.model.errors import Invalid, RecordUnreadable, Unavailable
from holdfast.store.encryption import keyring
from holdfast.store.encryption.key_file import Key, KeyFile, encode_keys, new_key, read
from holdfast.store.encryption.keyring import Keyring, Wrapped

HERE = "objects/secrets/risk/db"
THERE = "objects/secrets/rival/db"
PLAIN = b'{"metadata":{"name":"db","namespace":"risk","uid":"u-1"},"data":{"a":"c2VjcmV0"}}'


class Service:
    """Wraps by turning bytes around; can be told to be away."""

    def __init__(self) -> None:
        self.name, self.away, self.asked = "one", False, 0

    async def wrap(self, data_key: bytes) -> Wrapped:
        return Wrapped(self.name, data_key[::-1])

    async def unwrap(self, wrapped: Sequence[Wrapped]) -> list[bytes | None]:
        self.asked += 1
        if self.away:
            raise Unavailable("away")
        return [it.data[::-1] if it.key in ("one", "two") else None for it in wrapped]


def ring(service: Service | None = None, **options: bool) -> Keyring:
    return asyncio.run(Keyring.open(service or Service(), **options))


def opened(by: Keyring, key: str, value: bytes) -> bytes:
    asyncio.run(by.learn([value]))
    return by.decrypt(key, value)


def test_a_record_opens_in_its_place_and_nowhere_else() -> None:
    """A ciphertext that is moved to another tenant's key is not its Secret."""
    value = ring().encrypt(HERE, PLAIN)
    reader = ring()
    assert b"c2VjcmV0" not in value
    assert opened(reader, HERE, value) == PLAIN
    assert opened(reader, THERE, value) == value
    assert reader.refused == 1


def test_what_could_not_be_opened_is_unreadable_with_a_sentence() -> None:
    value = ring().encrypt(HERE, PLAIN)
    with pytest.raises(RecordUnreadable, match=r"secrets/rival/db.*key 'one'.*altered or moved"):
        decode(THERE, opened(ring(), THERE, value))


@given(st.data())
def test_no_changed_byte_is_ever_accepted(data: st.DataObject) -> None:
    value = bytearray(ring().encrypt(HERE, PLAIN))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= data.draw(st.integers(1, 255))
    assert opened(ring(), HERE, bytes(value)) == bytes(value)


def test_the_header_is_part_of_what_is_authenticated() -> None:
    value = ring().encrypt(HERE, PLAIN)
    found = split_record(value)
    assert found is not None
    assert found.header.uid == "u-1"
    header = found.header
    for other in (
        Header("two", header.wrapped, header.nonce, header.uid),
        Header(header.key, header.wrapped, header.nonce, "u-2"),
    ):
        forged = frame(header_bytes(other), found.body)
        assert opened(ring(), HERE, forged) == forged


def test_the_same_record_is_never_the_same_twice() -> None:
    one = ring()
    assert len({one.encrypt(HERE, PLAIN) for _ in range(50)}) == 50


def test_a_data_key_is_not_used_for_too_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "RECORDS_PER_KEY_MAX", 3)
    one, used = ring(), set()
    for _ in range(9):
        asyncio.run(one.ready())
        found = split_record(one.encrypt(HERE, PLAIN))
        assert found is not None
        used.add(found.header.wrapped)
    assert len(used) == 3


def test_a_service_that_is_away_is_asked_once_in_a_while_only() -> None:
    service = Service()
    value = ring(service).encrypt(HERE, PLAIN)
    now = [0.0]
    reader = Keyring(service, monotonic_s=lambda: now[0])
    service.away = True
    for _ in range(5):
        with pytest.raises(Unavailable):
            asyncio.run(reader.learn([value]))
    assert service.asked == 1
    service.away, now[0] = False, keyring.RETRY_S
    assert opened(reader, HERE, value) == PLAIN


def test_another_current_key_is_taken_up_and_the_one_before_still_reads() -> None:
    service = Service()
    one = ring(service)
    before = one.encrypt(HERE, PLAIN)
    service.name = "two"
    asyncio.run(one.refresh())
    assert one.current == "two"
    assert not one.is_current(before)
    assert one.is_current(one.encrypt(HERE, PLAIN))
    assert opened(one, HERE, before) == PLAIN


def test_without_encryption_records_stay_plain_and_old_ones_can_be_read() -> None:
    value = ring().encrypt(HERE, PLAIN)
    off = ring(plain=True)
    assert off.encrypt(HERE, PLAIN) == PLAIN
    assert opened(off, HERE, value) == PLAIN
    assert off.is_current(PLAIN)
    assert not off.is_current(value)


@pytest.mark.parametrize(
    "value", [b"", encrypted_records.MAGIC, encrypted_records.MAGIC + b"\xff\xff\x00"]
)
def test_a_damaged_envelope_is_left_as_it_is(value: bytes) -> None:
    assert opened(ring(), HERE, value) == value


FIXED = Key("a", bytes(range(32)))

# Key files ---------------------------------------------------------------------------------------


def key_file(path: Path, *names: str) -> Path:
    write_private(path, encode_keys([new_key(name) for name in names]))
    return path


def test_a_key_file_wraps_with_its_first_key_and_opens_with_all(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", "old")
    before = ring_of(path).encrypt(HERE, PLAIN)
    write_private(path, encode_keys([new_key("new"), *read(path)]))
    after = ring_of(path)
    assert after.current == "new"
    assert opened(after, HERE, before) == PLAIN


def test_another_key_of_the_same_name_opens_nothing(tmp_path: Path) -> None:
    value = ring_of(key_file(tmp_path / "a", "key-1")).encrypt(HERE, PLAIN)
    assert opened(ring_of(key_file(tmp_path / "b", "key-1")), HERE, value) == value


def test_a_key_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", "old")
    one = ring_of(path)
    write_private(path, encode_keys([new_key("new"), *read(path)]))
    asyncio.run(one.refresh())
    assert one.current == "new"


def ring_of(path: Path) -> Keyring:
    return asyncio.run(Keyring.open(KeyFile(path)))


@pytest.mark.parametrize(
    "content, mode, word",
    [
        (b"", 0o600, "from 1 to"),
        (b"name short\n", 0o600, "32 bytes in base64"),
        (encode_keys([FIXED, FIXED]), 0o600, "different names"),
        (encode_keys([FIXED]), 0o640, "chmod 600"),
        (b"\xff\xfe", 0o600, "not text"),
    ],
)
def test_a_key_file_that_cannot_be_used_is_refused_unquoted(
    tmp_path: Path, content: bytes, mode: int, word: str
) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(Invalid, match=word) as refused:
        KeyFile(path)
    assert "short" not in refused.value.message
    assert repr(new_key("a")) == "Key(a)"
