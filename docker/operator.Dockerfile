# The operator: the control plane without torch and without the stages' code.
# Build from the project's root: docker build -f docker/operator.Dockerfile -t syrinx/operator:VERSION .
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/src/docker/operator.txt
RUN python -m venv /opt/syrinx
ENV PATH=/opt/syrinx/bin:$PATH
WORKDIR /src
# What it depends on, without its sources: this layer stays while only they change.
COPY docker/operator.txt docker/
COPY pyproject.toml README.md LICENSE ./
RUN mkdir operator stages \
    && pip install setuptools \
    && pip install --no-build-isolation ".[operator]"
COPY stages/syrinx_stages/__init__.py stages/syrinx_stages/__init__.py
COPY stages/syrinx_stages/contract stages/syrinx_stages/contract
COPY stages/syrinx_stages/scheduling stages/syrinx_stages/scheduling
COPY operator operator
RUN pip install --no-build-isolation --no-deps --force-reinstall . \
    && pip uninstall --yes setuptools pip \
    && SYRINX_STAGES_IMAGE=none python -c "import syrinx_operator.main, syrinx_operator.cluster.watch.selftest"

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Syrinx operator" \
      org.opencontainers.image.description="Turns TTSPipeline resources into running Qwen3-TTS services" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/opt/syrinx/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 LOG_FORMAT=json
COPY --from=build /opt/syrinx /opt/syrinx
WORKDIR /tmp
# kopf asks for the user's name, and there is none for this user id.
ENV USER=syrinx
USER 65532:65532
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT []
CMD ["kopf", "run", "--standalone", "--module=syrinx_operator.main", "--all-namespaces"]
