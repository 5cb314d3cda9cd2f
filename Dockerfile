# lingeronnx as a program: docker build -t lingeronnx . && docker run --rm -v "$PWD:/work" lingeronnx quantize model.onnx
# Results belong to user 1000; name another one by: docker run --user "$(id -u):$(id -g)" ...
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY . .
RUN python -m venv /opt/lingeronnx
RUN /opt/lingeronnx/bin/python -m pip install --no-cache-dir .

FROM python:${PYTHON}-slim
COPY --from=build /opt/lingeronnx /opt/lingeronnx
RUN useradd --create-home --uid 1000 lingeronnx && mkdir -m 1777 /cache /work
# Kernels are compiled for the processor that they run on: mount a volume at /cache to keep them.
ENV PATH=/opt/lingeronnx/bin:$PATH LINGERONNX_CACHE_DIR=/cache
USER lingeronnx
WORKDIR /work
ENTRYPOINT ["lingeronnx"]
CMD ["--help"]
