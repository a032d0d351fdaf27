"""controller:workload: which replicas a workload has."""
