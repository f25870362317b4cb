"""nights/spaces: embedding spaces: tables of vectors in Lance's format, brought up to date by computing only rows that are new.

fingerprint   what a row's vector depends on, as a digest; the parameters that make a space
table         spaces in a stack's bucket: descriptors, snapshots, the one commit that a night makes, compaction, pruning
update        tonight's dataset against the table: what to compute, what to remove; a run's output -> a new version and a delta
delta         what a night changed, as a Parquet file and a manifest that consumers apply
canary        kept rows, embedded again before anything new is
recipes       the code by which others read a space

A night does: `open_space`, `applied` (done already?), `difference`, `check_canary`, its run, `apply`, `keep_canary`. docs/spaces.md
"""
