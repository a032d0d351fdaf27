"""Records that are encrypted on their way to the disk, and decrypted on their way back.

`EncryptedStore` is a store around a store. Everything above it sees plain records. Everything below
it sees encrypted ones: what is written to disks, sent to etcd, or handed to a backup.
"""

from holdfast.store.encryption.encrypted_store import EncryptedStore

__all__ = ["EncryptedStore"]
