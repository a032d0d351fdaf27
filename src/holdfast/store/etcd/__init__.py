"""The distributed store: etcd through a thin client of our own on gRPC (ADR 0005, 0022 to 0024).

Needs the extra `holdfast[etcd]`.
"""

from __future__ import annotations

from holdfast.store.etcd.config import EtcdConfig
from holdfast.store.etcd.store import EtcdStore

__all__ = ["EtcdConfig", "EtcdStore"]
