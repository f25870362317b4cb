"""nights/report: one self-contained HTML page for a run and for a night, and an index over them. No scripts, nothing from the network.

`read` takes what a store holds, `build` makes frozen values of it (`model`), `charts` and `page` make HTML of those, `write` puts it where
it belongs. A page can always be made again: nothing rests on it.
"""
