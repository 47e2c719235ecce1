"""Detection of cores that other programs disturb. Turns without canaries, as on GPUs, are unaffected.

before(turn)  sweep/turns.py, agent.py: try a canary, wait until the cores are idle
after(turn)   sweep/turns.py, agent.py: judge the turn, plan another try
of(records)   notes.py: notes for the reader of a table
"""
