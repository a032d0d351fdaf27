"""Checkers of a plane, which read what each commit changed and what the machines state as facts.

    ledger_oracle        `StoreCopy`, and what the store holds, added up independently
    permitted_changes    which actor changed what: the lifecycle table, epochs, field owners
    commit_checks        fences, stale evidence, reservations, kept operations
    budget_checks        voluntary disruptions
    room_checks          overcommitted nodes, and classes of capacity
    witness              what was acknowledged, repeated and watched
    process_checks       what runs, by the process tables
    node_checks          marks, fences and incarnations of nodes
    starvation           no replica is overtaken again and again
    liveness             what must happen after the faults
    plane_census         what happened, for the tests that demand that it does

`planes/invariants` has the traits that give them to a world.
"""
