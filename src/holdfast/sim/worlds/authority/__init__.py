"""The authority world: real servers over one store, and scripted clients that ask for everything.

The servers are the product's own. The scripted clients stand in for schedulers, controllers, agents
and users. They know only which requests exist, act on old snapshots, repeat themselves and try what
is forbidden. So what holds here is held by the commit alone.

    scripted_clients      how every client reads, asks and repeats
    scripted_schedulers   binds, reservations, preemptions, gangs, and mistakes in all of them
    scripted_controllers  workloads, nodes, repair, garbage, drains, endpoints
    scripted_agents       nodes that register, run, stop and return
    people                an operator with a script
    rogues                clients that have no permission for what they try
    census                what happened, for the tests of this world
    scenario              the participants and the faults

Its checkers are those of `planes/checkers`.
"""
