"""Makes a few kernels and a short rule from the measurements of many devices, for `autotune distill`.

`cases.py` reads the measurements, `losses.py` estimates what was not measured, `rules.py` fits the rule and judges it.
"""
