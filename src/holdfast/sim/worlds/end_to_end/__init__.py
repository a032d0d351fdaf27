"""One replica, end to end: servers, a scheduler, controllers and agents, with real machines.

Nothing decides here but the code that ships. What is simulated is what lies below it: the network,
the store, clocks, and on each node a process table with its shims (`process_table`), which is the
ground truth for "at most one copy runs".
"""
