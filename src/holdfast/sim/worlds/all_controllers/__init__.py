"""All controllers, end to end: services, jobs, cron jobs and per-node workloads.

The machines are those of the world end_to_end, with all controllers; `process_table` lets work end
by itself, `people` creates and changes every type of work, `invariants` and `checks` say what must
hold meanwhile and in the end. `small_worlds` has the small worlds that a sweep goes through point
by point.
"""
