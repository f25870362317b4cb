"""nights: what recurs: jobs as files, embedding spaces, evaluations, reports, notifications. Stands on contract and pipelines alone.

`jobs/` reads job files and knows when they are due; `night` does one job for one date; `spaces/` keeps embeddings and computes only what is
new; `evals/` scores, compares and gates; `report/` and `notify` tell people. What happened is a `NightRecord` in the stack's bucket
(`record`), which all of them read: nothing here decides anything by a local file.
"""
