# An image of this project; docs/install.md says how to build and run it.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

# Address of PyTorch's packages for the CPU or for a version of CUDA. Without it, PyPI's torch is installed.
ARG PIP_EXTRA_INDEX_URL=

WORKDIR /pong-ladder
COPY requirements.lock ./
RUN pip install --no-cache-dir --requirement requirements.lock && pip install --no-cache-dir --no-deps ptan==0.8.1
COPY . .
RUN pip install --no-cache-dir --no-deps --editable .

# For `docker run --user`: a writable home and a user name.
ENV HOME=/tmp USER=user

# Runs are written to /pong-ladder/runs.
ENTRYPOINT ["python"]
CMD ["distributed/03_ppo_actors.py"]
