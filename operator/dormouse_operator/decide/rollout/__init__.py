"""How another spec takes the place of the present one: planners over plain numbers, and what they mean for pods. Pure.

change      what a change of the spec takes: nothing, another engine, another pod
limits      maxSurge and maxUnavailable as numbers of pods
surge       the next step of a roll-out by other pods (numbers only)
swap        how many engines to swap now (numbers only)
standing    which pods are new, old, swapped where they are, on their way out
removal     the next step of one pod on its way out: gate, endpoints, drain, delete
swapping    the next step of one pod that gets another engine
stop        whether the roll-out has failed, and why
plan        all of them together
"""
