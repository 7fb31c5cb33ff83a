"""What a language model's memory of the conversation costs: exact cache sizes, engine rules and plans.

No streamlit or plotly here, and torch only inside kvcore.live. `python -m kvcore --help` lists the commands.
"""

__version__ = "0.2.0"
