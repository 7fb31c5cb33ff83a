"""A small language model that runs here: the engine, its models, its process and the measurements taken with it.

torch is imported by the modules that compute (`cache`, `weights`, `wide`, `rope`, `attention`, `graphs`, `decoder`) and
by nothing else when it is imported.
"""
