"""What a node says of how far it keeps tenants apart."""

from __future__ import annotations

import ctypes
from pathlib import Path

from holdfast.host.runtime import isolation_levels, shim_binary
from holdfast.host.runtime.shim_binary import ShimProgram

CREATE_RULESET, ASK_VERSION, HAS_SCOPES = 444, 1, 6


def test_a_node_says_whether_its_kernel_keeps_abstract_sockets_apart() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    has_scopes = libc.syscall(CREATE_RULESET, None, 0, ASK_VERSION) >= HAS_SCOPES
    assert isolation_levels.limits_of(shim_binary.find()) == (
        () if has_scopes else (isolation_levels.SHARED_SOCKETS,)
    )
    # A shim that cannot is asked on kernels that are older than this machine's.
    unable = ShimProgram(Path("/bin/false"), "pid-namespace", True)
    assert isolation_levels.limits_of(unable) == (isolation_levels.SHARED_SOCKETS,)
    assert len(isolation_levels.SHARED_SOCKETS) <= isolation_levels.NOTE_MAX
