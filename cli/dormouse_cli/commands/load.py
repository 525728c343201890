"""`bench`: load on a deployment, as its clients see it."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from dormouse_cli.options import Address, ApiKey, Context, Form, Kubeconfig, Model, Namespace, Output, Tls, TlsCa
from dormouse_cli.session import said_errors, way_of, world_of

MAX_IN_FLIGHT = 1000  # a server takes 1,024 streams of one connection; what is beyond them would wait unseen


def _above_zero(value: float) -> float:
    if math.isnan(value) or value <= 0:
        raise typer.BadParameter(f"{value} is out of range; allowed are numbers above 0, and inf")
    return value


Rate = Annotated[
    float,
    typer.Option(
        "--request-rate", callback=_above_zero, help="Requests per second, Poisson arrivals; inf sends all at once."
    ),
]
NumPrompts = Annotated[int, typer.Option(min=1, help="Requests to send.")]
MaxConcurrency = Annotated[
    int,
    typer.Option(
        min=1,
        max=MAX_IN_FLIGHT,
        help="Maximum requests in flight; time spent waiting for a place is reported separately.",
    ),
]
InputLen = Annotated[int, typer.Option(min=1, help="Tokens of each prompt, drawn at random.")]
OutputLen = Annotated[int, typer.Option(min=1, max=2**32 - 1, help="Maximum tokens of each answer.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed sends the same prompts at the same times.")]
Warmups = Annotated[
    int, typer.Option("--num-warmups", "--warmups", min=0, help="Warm-up requests, one by one, not measured.")
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Ignore end-of-sequence: answers have their full length.")
]
Goodput = Annotated[
    list[str] | None,
    typer.Option(help="Goodput limit METRIC:MS of ttft, tpot or e2el; repeat it, or give 'ttft:500 tpot:50'."),
]
Metrics = Annotated[
    str, typer.Option("--percentile-metrics", help="Which of ttft, tpot, itl and e2el to print, comma-separated.")
]
Percents = Annotated[str, typer.Option("--metric-percentiles", help="Which percentiles to print, comma-separated.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds that a request may take.")]


def bench(
    context: typer.Context,
    model: Model,
    address: Address = None,
    num_prompts: NumPrompts = 100,
    request_rate: Rate = math.inf,
    max_concurrency: MaxConcurrency = MAX_IN_FLIGHT,
    random_input_len: InputLen = 128,
    random_output_len: OutputLen = 128,
    seed: Seed = 0,
    warmups: Warmups = 1,
    ignore_eos: IgnoreEos = False,
    goodput: Goodput = None,
    percentile_metrics: Metrics = "ttft,tpot,itl,e2el",
    metric_percentiles: Percents = "50,90,99",
    timeout: Timeout = 600.0,
    output: Output = Form.TEXT,
    api_key: ApiKey = None,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Send load to a model and print latencies and rates. Ctrl-C prints the results so far.

    Options and figures have the names of vLLM's `bench serve`. Exit code 1: a request failed; 130: Ctrl-C.
    """
    from dormouse_cli.load.order import conclude, order_of, perform, tell
    from dormouse_cli.load.plan import Load
    from dormouse_cli.reach import door
    from dormouse_cli.screen import Screen

    load = Load(
        num_prompts=num_prompts,
        rate=request_rate,
        input_len=random_input_len,
        output_len=random_output_len,
        seed=seed,
        warmups=warmups,
        ignore_eos=ignore_eos,
        max_concurrency=max_concurrency,
    )
    way = way_of(address, api_key=api_key, tls=tls, tls_ca=tls_ca, kube=(kubeconfig, kube_context, namespace))
    screen = Screen.standard()
    with said_errors(screen.error):
        order = order_of(load, metrics=percentile_metrics, percents=metric_percentiles, goodput=goodput or ())
        with door(way, model, world_of(context)) as there:
            results = perform(order, way, there, timeout_s=timeout, screen=screen)
        tell(results, order, screen, output)
        conclude(results)
