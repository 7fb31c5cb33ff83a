"""TensorRT-LLM 1.4: blocks of tokens in one pool for each window size.

settings.py is what a user may set, pools.py what a block holds and how many there are, engine.py the answers.
"""

from kvcore.engines.tensorrt_llm.engine import TENSORRT_LLM, TensorRtLlm
from kvcore.engines.tensorrt_llm.settings import TensorRtLlmSettings

__all__ = ["TENSORRT_LLM", "TensorRtLlm", "TensorRtLlmSettings"]
