"""Measurements through the public API. ``python -m benchmarks`` lists them, with what each shows and how long it takes.

- ``speed``: how fast whole steps and trainings are, beside eager, ``torch.compile`` and programs batched by hand.
- ``cost``: what torchjanus takes for itself: guards and commits, learning, memory, warm-up.
- ``robustness``: whether results stay eager's where programs are unusual, change, or fail.
- ``programs``: the training steps that several of them measure.

``results`` holds their records, ``RESULTS.md`` the tables of the papers' programs.
"""
