#!/usr/bin/env bash
# Generate anew, elsewhere, all that is generated, and fail on any difference from the tree (make verify).
# Needs no network and no clean checkout.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

check() { # NAME COMMAND…
  local name=$1 output
  shift
  if output=$("$@" 2>&1); then
    echo "ok      $name"
  else
    printf 'FAILED  %s\n%s\n' "$name" "$output"
    failed=1
  fi
}

protobuf_code() { # tools/proto.sh works beside itself, so a copy of the tree's corners is enough
  mkdir "$scratch/tools" && cp tools/proto.sh "$scratch/tools" && cp -R api "$scratch/api" && mkdir "$scratch/localkube" && cp -R localkube/gpus "$scratch/localkube/gpus" && ln -s "$PWD/.venv" "$scratch/.venv" || return 1
  find "$scratch/api" "$scratch/localkube" -name '*_pb2*' -delete
  "$scratch/tools/proto.sh" || return 1
  diff -r --brief --exclude=__pycache__ api "$scratch/api" && diff -r --brief --exclude=__pycache__ localkube/gpus "$scratch/localkube/gpus" ||
    { echo "run: make proto"; return 1; }
}

check "generated protobuf code" protobuf_code
check "compatible wire contract" .venv/bin/python -m tools.wire --check
check "generated files of the chart" .venv/bin/python -m tools.charts --check
check "reference of metrics" .venv/bin/python -m tools.metric_catalogue --check
check "reference pages" .venv/bin/python -m tools.pages --check
check "locked requirements" .venv/bin/python -m tools.locks
exit $failed
