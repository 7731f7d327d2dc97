"""Tuning without a way back: a bundle of work that an agent carries out alone, and its result.

`prepare` chooses the candidates without the device, `script` records what the agent has to do for each, `note` says
what it was for. `result` reads what comes home, `collect` checks it and stores it as if it had been measured here.
"""
