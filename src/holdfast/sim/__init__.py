"""The shell that runs machines under virtual time, with seeded faults and checkers.

Nothing in here reads a wall clock or the system's randomness, except the campaign runner, which
shows its progress. A run is a function of (world, seed, plan): the same three give the same trace,
byte for byte, in any process.

    randomness, clock, trace      streams by purpose, a computer's clocks, the digest
    engine, cell, timers, lives   the event heap, computers and machines, their lives
    network, calls, streams       delays and cuts, Ask and Answer, Open and Push
    storage, watches, delivery    Txn, Range and FateOf, Watch, what befalls a delivery
    plan, fault_kinds, faults     faults and acts as data, what each does, when it strikes
    check, world                  checkers and violations; all of the above in one world
    run, artifact, shrink         scenario + seed -> report; saved runs; small failing plans
    campaign, mutants, sweep      many seeds, planted bugs, a fault at every single point
"""
