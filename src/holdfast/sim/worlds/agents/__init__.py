"""Agents and their work: crash loops, slow starts, probes, pre-stop hooks, Secrets, lost contact.

Two nodes below real servers, a scheduler and controllers run work of every behaviour. Its ground
truth is a process table. `scenario` has the participants and faults, `behaviours` how work behaves,
`process_table` performs it, `observers` taps the agents, and the `*_checks` modules check them.
"""
