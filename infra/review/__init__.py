"""infra/review: looking at stacks: previews and their report, drift, doctor, the kill switch, and the one runner of the engine."""
