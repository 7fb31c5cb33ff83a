"""A small language model that runs here: the engine, its models, its process and the measurements taken with it.

torch is imported by the modules that compute (`cache`, `weights`, `wide`, `rope`, `attention`, `graphs`, `decoder`) and
by nothing else when it is imported.
"""

import os

# The page is drawn on this machine too. By default OpenMP's threads spin at the end of each operation; where something
# else runs on one of the cores, they spin in place of the one that they wait for, and a step takes twenty times as
# long. Asleep they cost nothing when nobody else is there. Read once, when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
