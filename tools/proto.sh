#!/usr/bin/env bash
# Generate the committed protobuf and gRPC code from the .proto files (make proto).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$PWD/.venv/bin
well_known=$("$venv/python" -c 'import grpc_tools, pathlib; print(pathlib.Path(grpc_tools.__file__).parent / "_proto")')

generate() { # FILE…: as the code will import them, seen from the current folder
  "$venv/python" -m grpc_tools.protoc -I. -I"$well_known" \
    --plugin=protoc-gen-mypy="$venv/protoc-gen-mypy" --plugin=protoc-gen-mypy_grpc="$venv/protoc-gen-mypy_grpc" \
    --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. "$@"
}

(cd api && generate dormouse_api/v1/*.proto dormouse_api/foreign/*.proto)
generate localkube/gpus/*.proto
