"""emulator: the control plane: RunPod's REST v2 for endpoints, templates, network volumes, registries, catalog and billing.

May touch: what the emulator gives it: its state, its clock, its endpoints. What is made here is what the data plane serves.

- schema.py, bodies.py    what a request body may hold (422 with every failing field)
- records.py, views.py    what is kept, and what of it an answer shows
- catalog.py              GPU types, CPU flavors, data centers, prices
- account.py              one account: rule conflicts (400), quota, releases, and what they do to the data plane
- usage.py                hours of billing; rules.py: what RunPod does to endpoints by itself
- quota.py, server.py     HTTP: keys, rate limits, faults, routes; logs.py: worker logs as server-sent events
- volumes.py              network volumes as RunPod's S3 API shows them
"""

from __future__ import annotations
