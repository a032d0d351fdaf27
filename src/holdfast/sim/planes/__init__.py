"""Simulated planes, built from a `Plane` and a list of traits.

`simulated_plane` has the plane while it is built and what its parts share; `components` has the
traits for its store, servers, schedulers, controllers, nodes and people, `invariants` those for its
`checkers`; `plane_scope` lets several planes share a world.

The machines that stand in for what lies below the product are here as well, with the taps that
state facts for checkers:

    simulated_server    a server process: authority, watch hub and renewals in one life
    process_table       what runs on each node, held by a `simulated_shim`: the ground truth
    hollow_node         a node that only reports
    component_taps      the accepted requests of any component
    scheduler_taps      the requests and answers of a scheduler
    node_health_taps    what controllers learn about heartbeats, and faults that hide them

Worlds and scenarios import planes, never the other way round.
"""
