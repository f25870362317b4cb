"""nights/report: one self-contained HTML page for a run and for a night, and an index over them. No scripts, nothing from the network."""
