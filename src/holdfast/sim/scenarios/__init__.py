"""The worked examples, each played by the production machines under virtual time.

One file per example: who is there, what befalls them at which moment, and every sentence that must
be true in the end. `stage` builds the plane, `cues` lets something happen at the very moment when
it hurts, `story` writes down what was asked, answered and committed, `expecting` judges the
sentences by it. The seed draws all the rest: how long messages take, who is faster, by how much
somebody is late. `holdfast sim run NAME` plays one.
"""
