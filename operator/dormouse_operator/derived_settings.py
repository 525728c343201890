"""What settings and seeds come to for the parts that they are handed to. Pure."""

from __future__ import annotations

from datetime import timedelta

from dormouse_operator.certificates.identities import CertificateSettings
from dormouse_operator.decide.pressure import Budgets
from dormouse_operator.decide.release import Release
from dormouse_operator.manifests import WorkerDefaults
from dormouse_operator.seeds import Seeds
from dormouse_operator.settings import Settings


def release_of(settings: Settings, seeds: Seeds) -> Release:
    """Return what of this installation decides what pods are like."""
    return Release(
        default_image=settings.worker_image,
        agreement_timeout_s=settings.agreement_seconds,
        operator_keys=seeds.operator_keys,
        seals=seeds.seals,
        picker=settings.picker,
        arrows=settings.arrows,
    )


def worker_defaults(settings: Settings, seeds: Seeds) -> WorkerDefaults:
    """Return what every worker pod gets, whatever its deployment says."""
    return WorkerDefaults(
        settings.worker_image_pull_policy,
        operator_key=seeds.operator_keys[0],
        gateway_key=seeds.gateway_key,
        node_loss_s=settings.node_loss_seconds,
        environment=settings.tracing,
        http_image=settings.gateway_image,
        image_pull_secrets=settings.worker_image_pull_secrets,
    )


def certificate_settings(settings: Settings) -> CertificateSettings:
    """Return how long certificates last, and where the authority's is kept."""
    return CertificateSettings(
        namespace=settings.namespace,
        release=settings.release,
        lifetime=timedelta(seconds=settings.certificate_seconds),
        authority_lifetime=timedelta(seconds=settings.authority_seconds),
        authority_secret=settings.authority_secret,
    )


def budgets_of(settings: Settings) -> Budgets | None:
    """Return what models may keep in nodes' memory, None for what they need."""
    copies, percent = settings.max_sleeping_host_bytes, settings.max_node_memory_percent
    return Budgets(max_sleeping_bytes=copies, max_node_percent=percent) if copies or percent else None
