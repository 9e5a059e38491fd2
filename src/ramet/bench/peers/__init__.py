"""Other engines on the tasks of `ramet.bench.offline`; each file runs alone under the interpreter that has the engine."""
