"""Other engines on the tasks of `ramet.bench.offline`; each file runs alone, under an interpreter with that engine."""
