"""The shell that runs machines under virtual time, with seeded faults and checkers.

Nothing in here reads a wall clock or the system's randomness, except the campaign runner, which
shows its progress. A run is a function of (world, seed, plan): the same three give the same trace,
byte for byte, in any process.

    randomness  streams of random numbers by purpose      world     event heap, machines, lives
    clock       what a computer's own clocks read         calls     Ask and Answer over the network
    trace       canonical lines and their digest          streams   Open and Push over the network
    network     delays, losses, cuts                      storage   Txn, Range, FateOf, Watch
    plan        faults and acts as data                   faults    what each kind of fault does
    check       checkers and violations                   run       scenario + seed -> what happened
    shrink      a failing plan made small                 campaign  many seeds in several processes
    mutants     planted bugs, to measure the checkers     sweep     a fault at every single point
"""
