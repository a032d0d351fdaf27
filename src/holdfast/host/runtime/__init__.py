"""Runs an agent's work as real processes, each held by a shim.

`runtime.NodeRuntime` performs the effects of `agent/runtime_protocol` for a shell; `shim.c` is the
process that holds one attempt of a replica and its deadline.
"""
