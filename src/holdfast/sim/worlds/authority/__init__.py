"""The world of the authority: real servers and a store, and hands that ask them for everything.

The servers are the product's own. The hands stand in for schedulers, controllers, agents and
people: they know only what may be asked, act on old news, repeat themselves and try what is
forbidden, so that whatever holds here is held by the commit alone.

    hands          how every hand sees, asks and repeats
    schedulers     leases, binds, reservations, gangs, preemptions
    controllers    workloads, nodes, repair, garbage
    agents         nodes that register, run, stop and come back
    people         operators with a script, and a rogue who may do nothing of what he tries
    books          the checkers: what the store holds, added up independently
    scenario       who lives here, and what befalls them
"""
