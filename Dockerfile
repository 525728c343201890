# The three images of Dormouse, and a worker that has vLLM, too: docker build --target operator|gateway|worker|worker-vllm .
#
# Layers, from the bottom: base, environment (changes with the lock file), our code (changes with every commit).
# Whoever builds behind a mirror, or without any index, mounts a pip.conf at /etc/pip.conf (see tools/images).
ARG BASE_IMAGE=python:3.11-slim-bookworm
# Where bases keep pip and what could bring it back: operator and gateway go without.
ARG INSTALLERS="/usr/local/lib/python3*/site-packages/pip* /usr/local/lib/python3*/site-packages/setuptools* \
/usr/local/lib/python3*/site-packages/wheel* /usr/local/bin/pip* /usr/local/bin/wheel \
/usr/local/lib/python3*/ensurepip /usr/lib/python3*/ensurepip /usr/share/python-wheels"
# Of the kubernetes client, the classes with a method per call (80 MB with bytecode): dormouse_kube makes its calls itself.
# The second names the same files in the list of what is installed, as a pattern of sed.
ARG GENERATED="/opt/venv/lib/python3*/site-packages/kubernetes/client/api/*_api.py \
/opt/venv/lib/python3*/site-packages/kubernetes/aio/client/api/*_api.py"
ARG GENERATED_IN_RECORD="^kubernetes/(aio/)?client/api/[^/]*_api\.py,"
# Objects of the same client, one module each: the operator loads three, so that their bytecode does not pay its 23 MB.
ARG RARELY_LOADED="/kubernetes/(aio/)?client/models/v"

# --- what all three stand on -----------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS base
# A name for the user (some libraries ask for it), and bytecode for the standard library where the base has none: with a
# read-only root file system every start would compile it again. What cannot be compiled there is not needed either.
RUN echo 'dormouse:x:65532:65532:dormouse:/tmp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'dormouse:x:65532:' >> /etc/group \
    && { python3 -m compileall -qq -x '/(test|lib2to3|idlelib)/' \
         "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" || true; }
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/opt/dormouse/lib \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    HOME=/tmp
WORKDIR /opt/dormouse

# --- environments: one layer each, made anew only when the lock file changes -----------------------------------------
# PYTHONDONTWRITEBYTECODE does not keep pip from compiling what it installs; pip itself does not stay. The images are
# built on these stages, not copied from them, so that each environment exists once. All are built to the same digests
# again (python -m tools.images reproduce): their bytecode is valid whatever the files' times are.
FROM base AS operator-env
ARG INSTALLERS
ARG GENERATED
ARG GENERATED_IN_RECORD
ARG RARELY_LOADED
COPY requirements/operator.txt /opt/requirements.txt
RUN python3 -m venv /opt/venv \
    && pip install --quiet --no-compile --no-deps --require-hashes --only-binary=:all: -r /opt/requirements.txt \
    && pip uninstall --quiet --yes setuptools pip \
    && rm -rf ${INSTALLERS} ${GENERATED} \
    && sed -i -E "\#${GENERATED_IN_RECORD}#d" /opt/venv/lib/python3*/site-packages/kubernetes-*.dist-info/RECORD \
    && python3 -m compileall -qq --invalidation-mode unchecked-hash -x "${RARELY_LOADED}" /opt/venv/lib

FROM base AS gateway-env
ARG INSTALLERS
ARG GENERATED
ARG GENERATED_IN_RECORD
ARG RARELY_LOADED
COPY requirements/gateway.txt /opt/requirements.txt
RUN python3 -m venv /opt/venv \
    && pip install --quiet --no-compile --no-deps --require-hashes --only-binary=:all: -r /opt/requirements.txt \
    && pip uninstall --quiet --yes setuptools pip \
    && rm -rf ${INSTALLERS} ${GENERATED} \
    && sed -i -E "\#${GENERATED_IN_RECORD}#d" /opt/venv/lib/python3*/site-packages/kubernetes-*.dist-info/RECORD \
    && python3 -m compileall -qq --invalidation-mode unchecked-hash -x "${RARELY_LOADED}" /opt/venv/lib

FROM base AS worker-env
COPY requirements/worker.txt /opt/requirements.txt
RUN python3 -m venv /opt/venv \
    && pip install --quiet --no-compile --no-deps --require-hashes --only-binary=:all: -r /opt/requirements.txt \
    && pip uninstall --quiet --yes pip \
    && { python3 -m compileall -qq -j 0 --invalidation-mode unchecked-hash /opt/venv/lib || true; }  # templates are no code

# --- our code, with bytecode that is valid whatever the files' times are ---------------------------------------------
FROM base AS code
COPY api/dormouse_api /code/api/dormouse_api
COPY kube/dormouse_kube /code/kube/dormouse_kube
COPY operator/dormouse_operator /code/operator/dormouse_operator
COPY gateway/dormouse_gateway /code/gateway/dormouse_gateway
COPY worker_image/dormouse_worker /code/worker_image/dormouse_worker
RUN for part in /code/*; do \
      python3 -m compileall -q --invalidation-mode unchecked-hash -s "$part" -p /opt/dormouse/lib "$part" || exit 1; \
    done

# --- the worker's kernels, and what Triton would compile at its first launch: compiled before (tools/images mounts them) --
# --- or here; without kernels torch alone computes, without the other Triton needs a C compiler at run time --------------
FROM worker-env AS kernels
COPY worker_image/dormouse_worker/native /code/worker_image/dormouse_worker/native
RUN mkdir /kernels \
    && if ls /srv/*.so; then cp /srv/*.so /kernels; \
       else { command -v g++ || { apt-get update && apt-get install --yes --no-install-recommends g++; }; } \
         && python3 /code/worker_image/dormouse_worker/native/build.py /kernels \
         && { python3 /code/worker_image/dormouse_worker/native/triton_stub.py /kernels || true; }; \
       fi || echo "the worker's image has no kernels: there is no compiler"

# --- the images ------------------------------------------------------------------------------------------------------
# REVISION is the commit, for their labels: --build-arg REVISION=$(git rev-parse HEAD)
FROM operator-env AS operator
COPY --from=code /code/api/ /code/kube/ /code/operator/ /opt/dormouse/lib/
ARG REVISION=""
LABEL org.opencontainers.image.title="dormouse operator" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.url="https://dormouse.dev" \
      org.opencontainers.image.source="https://github.com/dormouse/dormouse" \
      org.opencontainers.image.revision="${REVISION}"
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["python", "-m", "dormouse_operator"]

FROM gateway-env AS gateway
COPY --from=code /code/api/ /code/kube/ /code/gateway/ /opt/dormouse/lib/
ARG REVISION=""
LABEL org.opencontainers.image.title="dormouse gateway" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.url="https://dormouse.dev" \
      org.opencontainers.image.source="https://github.com/dormouse/dormouse" \
      org.opencontainers.image.revision="${REVISION}"
USER 65532:65532
EXPOSE 8000 50051 50052 8080
ENTRYPOINT ["python", "-m", "dormouse_gateway"]

FROM worker-env AS worker
COPY --from=code /code/api/ /code/worker_image/ /opt/dormouse/lib/
COPY --from=kernels /kernels/ /opt/dormouse/lib/dormouse_worker/native/
ARG REVISION=""
LABEL org.opencontainers.image.title="dormouse worker" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.url="https://dormouse.dev" \
      org.opencontainers.image.source="https://github.com/dormouse/dormouse" \
      org.opencontainers.image.revision="${REVISION}"
USER 65532:65532
EXPOSE 50051 50052 8080
ENTRYPOINT ["python", "-m", "dormouse_worker"]

# --- a worker that has vLLM for processors, too (spec.engine.runtime: vllm), where the operator looks for it: 5 GB more ---
FROM base AS vllm-env
COPY bench/peers.txt /opt/requirements.txt
RUN python3 -m venv /opt/vllm \
    && /opt/vllm/bin/pip install --quiet --no-compile --no-deps --require-hashes -r /opt/requirements.txt \
    && { python3 -m compileall -qq -j 0 --invalidation-mode unchecked-hash /opt/vllm/lib || true; }

FROM worker AS worker-vllm
USER 0:0
RUN apt-get update && apt-get install --yes --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*
COPY --from=vllm-env /opt/vllm/ /opt/vllm/
USER 65532:65532
