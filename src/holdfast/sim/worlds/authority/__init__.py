"""The world of the authority: real servers and a store, and hands that ask them for everything.

The servers are the product's own. The hands stand in for schedulers, controllers, agents and
people: they know only what may be asked, act on old news, repeat themselves and try what is
forbidden, so that whatever holds here is held by the commit alone.

    hands, looks   how every hand sees, asks and repeats
    schedulers     binds, reservations, preemptions, and mistakes in all of them
    gangs          how they place what belongs together
    controllers    workloads and nodes
    menders        repair, garbage, drains, endpoints
    agents         nodes that register, run, stop and come back
    people         an operator with a script
    rogues         who may do nothing of what they try
    books          checkers: what the store holds, added up independently
    claims         checkers: who took what was held or promised
    laws           checkers: who did what
    budgets        checkers: what was taken away on purpose
    fences         checkers: what was declared gone, and who came back
    witness        checkers: what was acknowledged, repeated and watched
    liveness       checkers: what must come about after the faults
    census         what really happened, for the tests of this world
    scenario       who lives here, and what befalls them
"""
