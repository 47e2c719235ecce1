"""Everything about cores that other programs disturb, behind three calls.

    before(turn)    turns.py, agent.py: try a canary, wait until the cores are idle
    after(turn)     turns.py, agent.py: judge the turn, plan another try
    notes(cell)     notes.py: what a reader of a table must know

A turn without canaries, as on GPUs, passes through all of it.
"""
