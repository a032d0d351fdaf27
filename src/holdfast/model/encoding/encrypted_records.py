"""The format of encrypted records, as far as it is readable without a key.

`store/encryption/` encrypts and decrypts records on the way to and from the disk, so that
everything above the store sees plain ones. A record that cannot be decrypted is passed on as it is;
this module then explains why it cannot be read.
"""

from __future__ import annotations

import msgspec

# JSON never starts with a zero byte, so a plain record is never mistaken for an encrypted one.
MAGIC = b"\x00HFE1"
# The prefix of a plain record that was found where only encrypted ones are trusted.
_DISTRUSTED = b"\x00HFP1"
_LENGTH_BYTES = 2


class Header(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The header before the encrypted bytes. It is authenticated with them.

    key: the name of the key that wraps the data key.
    wrapped: the wrapped data key.
    nonce: the nonce of this record, never used again.
    uid: the uid of the object, so that the object can be identified without a key.
    """

    key: str
    wrapped: bytes
    nonce: bytes
    uid: str


class EncryptedRecord(msgspec.Struct, frozen=True):
    """The parts of an encrypted record."""

    header: Header
    header_bytes: bytes
    body: bytes

    def bound_to(self, key: str) -> bytes:
        """The data that is authenticated with the body: the header and the record's key.

        Under another key it cannot be decrypted, so a record cannot be moved to another tenant.
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
    """Marks a plain record so that it cannot be decoded as an object."""
    return _DISTRUSTED + value


def split_record(value: bytes) -> EncryptedRecord | None:
    """The parts of an encrypted record; None if it is not one, or damaged."""
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
    """Why a record that is encrypted, or should be, cannot be read; empty for other records."""
    if value.startswith(_DISTRUSTED):
        return (
            "it is stored in plain text although all Secrets of this plane are encrypted: it was "
            "written directly to the store. Delete it and create the Secret again"
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
