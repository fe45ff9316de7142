# The stages: gateway, talker, codec and the fetching of checkpoints, one image for all of them.
# Build from the project's root: docker build -f docker/stages.Dockerfile -t syrinx/stages:VERSION .
#   --build-arg VARIANT=cuda    for NVIDIA GPUs: CUDA's libraries come with torch, the driver is the node's
#   --build-arg VARIANT=vllm    the same, and vLLM, for talkers with `engine: vllm`
#   --build-arg TORCH_INDEX=URL where torch is taken from; without it, whatever the configured index has. Torch's own
#                               indices of CPU wheels make an image a tenth the size of one with CUDA in it.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG VARIANT=cpu

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/src/docker/stages.txt
RUN python -m venv /opt/syrinx
ENV PATH=/opt/syrinx/bin:$PATH
WORKDIR /src
COPY docker/stages.txt docker/stages-vllm.txt docker/
ARG VARIANT
# vLLM wants other versions of some packages, of torch too.
RUN if [ "${VARIANT}" = vllm ]; then cp docker/stages-vllm.txt docker/stages.txt; fi
# The largest layer first, and alone.
ARG TORCH_INDEX
RUN pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch
RUN python -c "import sys, torch; sys.exit('torch has no CUDA' if '${VARIANT}' in ('cuda', 'vllm') and not torch.version.cuda else 0)"
# Stock vLLM, which finds the talker by Syrinx's entry point; the release that was run on a GPU (bench/results/engines.md).
RUN if [ "${VARIANT}" = vllm ]; then pip install vllm; fi
# What else they depend on, without their sources: this layer stays while only they change.
COPY pyproject.toml README.md LICENSE ./
RUN mkdir operator stages \
    && pip install setuptools \
    && pip install --no-build-isolation ".[stages,tracing,clone,fetch]"
COPY stages stages
RUN pip install --no-build-isolation --no-deps --force-reinstall . \
    && pip uninstall --yes pip \
    && python -c "import syrinx_stages.gateway.service, syrinx_stages.talker.service, syrinx_stages.codec.service, syrinx_stages.runtime.telemetry.otel, syrinx_stages.fetch"

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Syrinx stages" \
      org.opencontainers.image.description="Gateway, talker and codec of a Qwen3-TTS service" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# One thread each, as the stages compute: with more, sums depend on the batch. Torch's compiler asks who it runs as.
ENV PATH=/opt/syrinx/bin:$PATH HOME=/tmp USER=syrinx PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
# Of the node's driver, for pods that ask for a GPU; which GPU is the device plugin's to say.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
# On a GPU, Triton compiles what launches its kernels.
ARG VARIANT
RUN if [ "${VARIANT}" != cpu ]; then apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*; fi
COPY --from=build /opt/syrinx /opt/syrinx
WORKDIR /tmp
USER 65532:65532
EXPOSE 8000 9090
STOPSIGNAL SIGTERM
ENTRYPOINT []
CMD ["python", "-c", "import sys; sys.exit('name a stage: python -m syrinx_stages.gateway|talker|codec CONFIG')"]
