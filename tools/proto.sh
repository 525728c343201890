#!/usr/bin/env bash
# Generate the committed protobuf and gRPC code from the .proto files (make proto).
set -euo pipefail
cd "$(dirname "$0")/../api"
../.venv/bin/python -m grpc_tools.protoc -I. -I"$(../.venv/bin/python -c 'import grpc_tools, pathlib; print(pathlib.Path(grpc_tools.__file__).parent / "_proto")')" \
  --plugin=protoc-gen-mypy=../.venv/bin/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=../.venv/bin/protoc-gen-mypy_grpc \
  --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. dormouse_api/v1/*.proto
