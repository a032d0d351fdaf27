"""Everything that people want, kept so: services, jobs, cron jobs and one per node, end to end.

The machines are those of the slice world, with all controllers there are; `pieces` lets work end by
itself, `people` asks for everything, `laws` and `checks` say what must hold meanwhile and in the
end. `small` has the little worlds that a sweep goes through point by point.
"""
