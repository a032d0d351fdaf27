"""One replica, end to end: servers, a scheduler, controllers and agents, with real machines.

All decisions come from the code that ships. The simulator replaces what lies below it: the network,
the store, clocks, and on each node a process table with its shims (`planes/process_table`), which
is the ground truth for "at most one copy runs".
"""
