"""A small language model that runs here: the engine, its models, its process and the measurements taken with it.

From below: `shape` (what a decoder is), `weights`, `cache`, `attention`, `graphs` and `decoder` compute; `generate`
times each token; `models` finds weights and `tokenizer` text; `host` and `roofline` measure and predict; `session`,
`options`, `jobs` and `probes` are what the engine does; `protocol`, `worker`, `process` and `queue` put it into a
process of its own; `runs` keeps what came of it. torch is imported by the modules that compute and by nothing else when
it is imported.
"""

import os

# The page is drawn on this machine too. By default OpenMP's threads spin at the end of each operation; where something
# else runs on one of the cores, they spin in place of the one that they wait for, and a step takes twenty times as
# long. Asleep they cost nothing when nobody else is there. Read once, when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
