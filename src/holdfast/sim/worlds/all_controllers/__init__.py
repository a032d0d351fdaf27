"""Everything that people want, kept so: services, jobs, cron jobs and one per node, end to end.

The machines are those of the world end_to_end, with all controllers there are; `process_table` lets
work end by itself, `people` asks for everything, `invariants` and `checks` say what must hold
meanwhile and in the end. `small_worlds` has the little worlds that a sweep goes through point by
point.
"""
