"""`externalscaler.ExternalScaler`, as KEDA calls it: is there anything to do, and how much, beside a replica's part?"""

# ruff: noqa: N802  the methods' names are those of the .proto file
from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from dormouse_api.foreign import external_scaler_pb2 as pb
from dormouse_api.foreign import external_scaler_pb2_grpc as rpc
from dormouse_api.status import CallError
from dormouse_gateway import refusals
from dormouse_gateway.router import Router
from dormouse_gateway.scaler.demand import METRIC, Trigger, check_owner, outstanding, read_trigger

Context = Any  # aio.ServicerContext


class ExternalScaler(rpc.ExternalScalerServicer):
    """Answers from the gateway's own view of requests and workers."""

    def __init__(self, router: Router) -> None:
        """Take who knows deployments and their activity; it is only read."""
        self._router = router

    async def IsActive(self, request: pb.ScaledObjectRef, context: Context) -> pb.IsActiveResponse:
        """Return whether there is anything to do."""
        trigger = await self._trigger(request, context)
        return pb.IsActiveResponse(result=self._outstanding(trigger) > 0)

    async def StreamIsActive(self, request: pb.ScaledObjectRef, context: Context) -> AsyncIterator[pb.IsActiveResponse]:
        """Tell the same at once, and whenever it changes."""
        trigger = await self._trigger(request, context)
        told: bool | None = None
        with self._router.activity.reader(trigger.key) as changes:
            while True:
                changes.take(1)  # before it is looked at: what changes meanwhile is looked at again
                is_active = self._outstanding(trigger) > 0
                if is_active is not told:
                    yield pb.IsActiveResponse(result=is_active)
                    told = is_active
                await changes.wait()
                await self._trigger(request, context)

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Context) -> pb.GetMetricSpecResponse:
        """Return the only metric, and for how much of it one replica is."""
        target = (await self._trigger(request, context)).target
        spec = pb.MetricSpec(metricName=METRIC, targetSize=max(1, round(target)), targetSizeFloat=target)
        return pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        """Return how many requests are unfinished."""
        trigger = await self._trigger(request.scaledObjectRef, context)
        value = self._outstanding(trigger)
        metric = pb.MetricValue(metricName=METRIC, metricValue=value, metricValueFloat=value)
        return pb.GetMetricsResponse(metricValues=[metric])

    async def _trigger(self, said: pb.ScaledObjectRef, context: Context) -> Trigger:
        """Return what is asked for, once it is sure that nobody else scales it; else end the call with why."""
        try:
            if not self._router.is_synced:
                raise refusals.not_synced()
            trigger = read_trigger(said.namespace, said.scalerMetadata)
            check_owner(trigger.key, self._router.catalogue.get(trigger.key))
        except CallError as error:
            await context.abort(error.code, error.message)
            raise  # not reached: abort raises
        return trigger

    def _outstanding(self, trigger: Trigger) -> int:
        return outstanding(self._router.activity.activity(trigger.key))
