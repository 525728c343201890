#!/usr/bin/env bash
# Resolve the hash-pinned requirements of each part; all parts agree with dev.txt, which holds everything.
set -euo pipefail
cd "$(dirname "$0")/.."
UV=.venv/bin/uv
C="$UV pip compile pyproject.toml --python-version 3.11 --generate-hashes --no-emit-index-url --no-header -q"
$C --extra operator --extra gateway --extra worker --extra cli --extra tracing --extra kv-events --extra dev -o requirements/dev.txt
for p in operator cli; do $C --extra $p -c requirements/dev.txt -o requirements/$p.txt; done
for p in gateway; do $C --extra $p --extra tracing -c requirements/dev.txt -o requirements/$p.txt; done
$C --extra worker --extra tracing --extra kv-events -c requirements/dev.txt -o requirements/worker.txt
# the peer of the benchmarks, in an environment of its own
$UV pip compile bench/peers.in --override <(echo torch==2.13.0) --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-header --no-annotate -q -o bench/peers.txt
# the Whisper programs that ours is compared with, with the torch that we have
$UV pip compile bench/speech_peers.in -c requirements/dev.txt --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-header --no-annotate -q -o bench/speech_peers.txt
# the programs for processors that ours is compared with
$UV pip compile bench/processor_peers.in --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
  --no-annotate -q -o bench/processor_peers.txt
# the clients that are tried against the gateway: those of Python here, those of Node by their package-lock.json
$UV pip compile requirements/outside.in --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
  --no-annotate -q -o requirements/outside.txt
