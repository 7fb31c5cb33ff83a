"""KV Cache Explorer: `streamlit run app.py`."""

from pages.ui import shell

shell.run()
