"""The embedded store: one SQLite file, one process. Start at store.py, then engine.py."""

from __future__ import annotations

from holdfast.store.sqlite.backup import BackupContents, Restored, backup, restore, verify
from holdfast.store.sqlite.store import SqliteStore

__all__ = ["BackupContents", "Restored", "SqliteStore", "backup", "restore", "verify"]
