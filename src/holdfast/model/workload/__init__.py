"""How work of a workload follows from it: runs of jobs, calendars, rollouts."""
