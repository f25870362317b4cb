"""nights/evals: suites of questions with a scorer: results, baselines, gates, history.

`suite` reads suite files and makes rows; `scorers`, `code` and `judge` turn answers into `Sample`s; `stats`, `baseline`, `gate`, `history`
and `diff` work on results alone and know no model. A result is a header and its samples (`samples`), kept under `evals/SUITE/` in the
stack's bucket.
"""
