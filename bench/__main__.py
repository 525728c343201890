"""Run benchmarks one after the other and print one table: `python -m bench [NAME…]`.

    throughput  W1 against vLLM and transformers; the scheduler's cost per step
    latency     one request alone against vLLM and transformers
    prefix      a shared prefix against vLLM and transformers, cold and the second time
    decode      64 sequences that only decode against vLLM
    startup     process start to first token, beside vLLM's
    spare       serving again after a kill and after STANDBY, with a spare engine beside without
    memory      the most memory that all processes of a worker have, beside vLLM's
    kernels     our kernels for processors beside torch's operations and the machine's limits
    serve       our gRPC beside vLLM's own server at a rate; 64 streams; the front's cost per token message
    sleep       sleep and wake on the fake device; the residue; the profile's error
    gateway     the gateway's cost beside direct calls; 1,000 requests that arrive during one wake (as root)
    coldstart   wakes from both levels and from no pod at all, beyond the worker's own time (as root)
    groups      groups beside one worker: tokens, decode, a step's bytes, a rank that is killed
    sessions    a session of 4,000 tokens after sleeps and in another process, beside computing it; what writing costs
    roles       two workers for prompts and two that decode beside four plain ones: gaps between tokens
    quantized   weights of 8 and 4 bits beside our bfloat16: W2, W4, W1, reading, peak memory, perplexity
    kv_cache    caches of 8 bits: perplexity of long contexts, error, blocks, attention's time (quantized.json)
    adapters    W1 with 16 adapters beside none, requests without one, a cold one, others beside it, sleep and wake
    adapter_offers  500 InferenceAdapters at once: what the operator takes until all are loaded on 4 workers
    tenants     limits of keys over four gateways at ten times their rate; a greedy key beside another (platform.json)
    adapter_routing  500 adapters on 4 workers in a simulation: who finds his in a slot
    structured  answers bound by schemas: validity, speed beside free text, hostile grammars, kills
                (`python -m bench.structured_sets`: accepted tokens beside xgrammar's)
    speculation drafts beside none on a real chat model, and what proposing takes
    tasks       decisions beside prefilling their tokens; vectors beside padded batches; a long text cut
    systemone   questions about one text over HTTP beside vLLM's own server (tasks.json)
    task_equality  vectors, labels, decisions and Whisper's tokens beside transformers in float32 (tasks.json)
    vectors     an embedder behind a gateway, over HTTP: texts per second, a short query beside bulk work (tasks.json)
    multimodal  images in prompts: a second question, streams beside them, transformers, vLLM, memory over 1,000
    speech      Whisper's real-time factor, one stream, beside faster-whisper and openai-whisper (tasks.json)
    switch      a stand-in GPU's change of hands between two workers, its copy beside one memcpy
    platform    Envoy and our picker beside our gateway alone; requests lost over sleeps, roll-outs and a picker's kill
    canary      errors that users see of a canary that fails, over two gateways (platform.json)
    conformance the conformance kit on our worker, a stand-in, and 83 mutants of it (platform.json)
    vllm_worker a worker with vLLM's engine beside vLLM's own server; the conformance kit on it (platform.json)
    pools       40 models on 4 GPUs in virtual time: the arbiter beside LRU and a static partition

`python -m bench.NAME --help` tells how each measures.
Our own engine of another commit is compared with by `python -m bench.before --checkout DIRECTORY`.
The way from no pod to a token on the local Kubernetes is measured by `python -m bench.from_zero` (startup.json), that
to a replica of KEDA's by `python -m bench.keda` (platform.json).
The operator is measured by `python -m bench.fleet`, and with pools, all as root: switches by `python -m
bench.pools_switch`, a hundred pools at once by `python -m bench.pools_placing`, kills in the middle of switches by
`python -m bench.pools_faults`. `python -m bench.pools_replay` has the operator meet two hours of calls to a pool.

A whole run writes bench/results/NAME.json; a shortened one (--models, --reps, --count, --threads) writes nothing
unless --out says where. With --merge some of the models or one of the peers are enough: other rows stay as they were.
vLLM is compared with where `make bench-peers` has made its environment. Measure on a machine that does nothing else.
"""

from __future__ import annotations

from bench import (
    adapter_offers,
    adapter_routing,
    adapters,
    canary,
    coldstart,
    conformance,
    decode,
    gateway,
    groups,
    kernels,
    kv_cache,
    latency,
    memory,
    multimodal,
    platform,
    pools,
    prefix,
    quantized,
    roles,
    serve,
    sessions,
    sleep,
    spare,
    speculation,
    speech,
    startup,
    structured,
    switch,
    systemone,
    task_equality,
    tasks,
    tenants,
    throughput,
    vectors,
    vllm_worker,
)
from bench.options import Measure, end_children_on_sigterm, make_console, make_parser, run, to_options
from bench.results import print_table

BENCHMARKS: dict[str, Measure] = {
    "throughput": throughput.measure,
    "latency": latency.measure,
    "prefix": prefix.measure,
    "decode": decode.measure,
    "startup": startup.measure,
    "spare": spare.measure,
    "memory": memory.measure,
    "kernels": kernels.measure,
    "serve": serve.measure,
    "sleep": sleep.measure,
    "sessions": sessions.measure,
    "roles": roles.measure,
    "gateway": gateway.measure,
    "platform": platform.measure,
    "canary": canary.measure,
    "coldstart": coldstart.measure,
    "conformance": conformance.measure,
    "groups": groups.measure,
    "structured": structured.measure,
    "speculation": speculation.measure,
    "tasks": tasks.measure,
    "systemone": systemone.measure,
    "task_equality": task_equality.measure,
    "speech": speech.measure,
    "multimodal": multimodal.measure,
    "switch": switch.measure,
    "pools": pools.measure,
    "adapters": adapters.measure,
    "adapter_offers": adapter_offers.measure,
    "quantized": quantized.measure,
    "kv_cache": kv_cache.measure,
    "adapter_routing": adapter_routing.measure,
    "tenants": tenants.measure,
    "vectors": vectors.measure,
    "vllm_worker": vllm_worker.measure,
}


def main() -> None:
    """Run the named benchmarks, by default all."""
    end_children_on_sigterm()
    parser = make_parser("bench", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run (default: all)")
    flags = parser.parse_args()
    for name in flags.names:
        if name not in BENCHMARKS:
            parser.error(f"NAME is {name!r}; known are {', '.join(BENCHMARKS)}")
    console, options = make_console(), to_options(flags)
    rows = [row for name in flags.names or BENCHMARKS for row in run(name, BENCHMARKS[name], options, console)]
    print_table(rows, console)


if __name__ == "__main__":
    main()
