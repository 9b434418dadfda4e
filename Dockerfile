# Two images from one file, each with what it needs and nothing else, pinned by the hashes of requirements.lock:
#   docker build --target control .    api and worker
#   docker build --target agent .      a node
# "@sha256:..." of the base image, from deploy/images.env
ARG PYTHON_DIGEST=""

FROM python:3.13.9-slim-bookworm${PYTHON_DIGEST} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
COPY requirements.lock pyproject.toml README.md LICENSE ./
COPY deploy/lock-for deploy/
RUN deploy/lock-for hatchling > /tmp/build.lock && pip install --require-hashes --no-deps -r /tmp/build.lock
COPY . .
RUN python -m hatchling build -t wheel -d /wheels

FROM build AS control-packages
RUN deploy/lock-for 'nodesmith[control]' > /tmp/control.lock \
    && python -m venv /opt/nodesmith \
    && /opt/nodesmith/bin/pip install --require-hashes --no-deps -r /tmp/control.lock \
    && /opt/nodesmith/bin/pip install --no-deps --no-index /wheels/*.whl

FROM build AS agent-packages
RUN deploy/lock-for nodesmith > /tmp/agent.lock \
    && python -m venv /opt/nodesmith \
    && /opt/nodesmith/bin/pip install --require-hashes --no-deps -r /tmp/agent.lock \
    && /opt/nodesmith/bin/pip install --no-deps --no-index /wheels/*.whl

FROM python:3.13.9-slim-bookworm${PYTHON_DIGEST} AS base
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin nodesmith \
    && install --directory --owner nodesmith --group nodesmith --mode 0700 /var/lib/nodesmith
ENV PATH=/opt/nodesmith/bin:$PATH PYTHONUNBUFFERED=1 HOME=/var/lib/nodesmith
WORKDIR /var/lib/nodesmith
USER 10001:10001
ENTRYPOINT ["nodesmith"]

FROM base AS agent
COPY --from=agent-packages /opt/nodesmith /opt/nodesmith
ENV NODESMITH_AGENT_HOME=/var/lib/nodesmith
VOLUME /var/lib/nodesmith
CMD ["agent"]

FROM base AS control
COPY --from=control-packages /opt/nodesmith /opt/nodesmith
ENV NODESMITH_API_HOST=0.0.0.0 NODESMITH_GALLERY_FOLDER=/var/lib/nodesmith/gallery
EXPOSE 8900 8233
CMD ["api"]
