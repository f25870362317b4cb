"""pipelines: what runs on the user's side: dataset, plan, submit, follow, collect, verify, ledger, webhook.

May import `contract` and nothing else of the house; HTTP goes through `pipelines.runpod`, S3 through `contract.store`.
"""
