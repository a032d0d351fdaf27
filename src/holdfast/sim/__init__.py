"""The shell that runs machines under virtual time, with seeded faults and checkers.

Nothing here reads a wall clock or the system's randomness, except the campaign runner, which
shows its progress. A run is a function of (world, seed, plan): the same three give the same trace,
byte for byte, in any process.

    randomness, virtual_clock          random streams by purpose, the clocks of a computer
    event_engine                       the event heap, the trace and its digest
    cell, timers, lives                computers, machines, their timers, crashes and restarts
    virtual_network, calls             delays and cuts, Ask and Answer
    streams, storage                   Open, Push and Watch; Txn, Range and FateOf
    plan, faults                       faults and acts as data; what each fault does
    check, world                       checkers and violations; all of the above in one world
    run, shrink                        scenario + seed -> report; small failing plans
    campaign, mutants, sweep           many seeds, planted bugs, a fault at every single point
    catalogue                          the names of all scenarios
"""
