"""Runs an agent's work as real processes, each held by a shim.

`runtime.Runtime` performs the words of `agent/runtime_protocol` for a shell; `shim.c` is the
process that holds one piece of work and its deadline.
"""
