"""All that knows Streamlit and plotly: what the screens share, and one folder a screen."""
