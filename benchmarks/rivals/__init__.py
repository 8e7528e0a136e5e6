"""unsmooth beside the tools people use now: what they answer, and what asking costs; see `__main__`.

What a rival's process imports (`child`, `harness`, `tools`) needs nothing of unsmooth: each rival runs in an
environment of its own, made by ``make rivals-env``. Rivals are run, never copied.
"""
