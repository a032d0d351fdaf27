"""The form of a record that is encrypted at rest, as everybody can read it who has no key.

`store/encryption` makes and opens such records on the way to and from the disk, so that everything
above the store sees plain ones. What could not be opened is passed on as it is; then this module
says why a record cannot be read.
"""

from __future__ import annotations

import msgspec

# No JSON begins with a zero byte, so that no plain record is ever taken for an encrypted one.
MAGIC = b"\x00HFE1"
# Put before a plain record that is passed on where only encrypted ones are believed.
_DISTRUSTED = b"\x00HFP1"
_LENGTH_BYTES = 2


class Header(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What stands in front of the encrypted bytes. All of it is authenticated with them.

    key: the name of the key that the data key is wrapped with.
    wrapped: the data key, wrapped.
    nonce: of this record and no other.
    uid: of the object, so that people can tell without a key which object it was.
    """

    key: str
    wrapped: bytes
    nonce: bytes
    uid: str


class EncryptedRecord(msgspec.Struct, frozen=True):
    """An encrypted record, taken apart."""

    header: Header
    header_bytes: bytes
    body: bytes

    def bound_to(self, key: str) -> bytes:
        """What the encryption authenticates beside the body: the header, and where it is stored.

        With another place it does not open, so nobody can move a record to another tenant.
        """
        return bound_to(self.header_bytes, key)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Header)


def bound_to(header_bytes: bytes, key: str) -> bytes:
    return b"%b%b\x00%b" % (MAGIC, header_bytes, key.encode())


def header_bytes(header: Header) -> bytes:
    return _ENCODER.encode(header)


def frame(header: bytes, body: bytes) -> bytes:
    """The bytes to store."""
    return b"%b%b%b%b" % (MAGIC, len(header).to_bytes(_LENGTH_BYTES, "big"), header, body)


def is_encrypted(value: bytes) -> bool:
    return value.startswith(MAGIC)


def mark_distrusted(value: bytes) -> bytes:
    """A plain record in a form that nobody can take for an object."""
    return _DISTRUSTED + value


def split_record(value: bytes) -> EncryptedRecord | None:
    """The parts of an encrypted record; None for what is none, or damaged."""
    if not is_encrypted(value):
        return None
    begin = len(MAGIC) + _LENGTH_BYTES
    end = begin + int.from_bytes(value[len(MAGIC) : begin], "big")
    header = value[begin:end]
    try:
        return EncryptedRecord(_DECODER.decode(header), header, value[end:])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def unreadable_reason(value: bytes) -> str:
    """Why a record cannot be read here that is encrypted, or should be; nothing for others."""
    if value.startswith(_DISTRUSTED):
        return (
            "it is stored in plain text although all Secrets of this plane are encrypted: it was "
            "written without a key, past the servers. Delete it, and write the Secret again"
        )
    if not is_encrypted(value):
        return ""
    found = split_record(value)
    if found is None:
        return "it is encrypted and damaged"
    return (
        f"it is encrypted with key {found.header.key[:80]!r} and could not be decrypted: this "
        "server does not have that key, or the record was altered or moved"
    )
