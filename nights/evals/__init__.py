"""nights/evals: suites of questions with a scorer: results, baselines, gates, history.

`suite` reads suite files, `rows` makes rows of their questions and reads the answers; `scorers`, `code` (with `jail`) and `judge` score
them; `evaluate` is the whole of it over a `Runner`. `stats`, `baseline`, `gate`, `history`, `diff` and `inspect_log` work on results alone
and know no model. A result is a header and its samples (`samples`), kept under `evals/SUITE/` in the
stack's bucket.
"""
