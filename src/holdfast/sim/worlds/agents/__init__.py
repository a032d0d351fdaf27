"""Agents and their work: crash loops, slow starts, probes, farewells, secrets, silence, returns.

Two or three nodes below real servers, scheduler and controllers, with work of every manner in a
process table that is the ground truth. `scenario` says who is there, `manners` how work behaves,
`table` performs it, `ears` listens to agents, and the rest judges.
"""
