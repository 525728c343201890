"""Keeps certificates: the authority's, the operator's own, the gateways', and one for the workers of each deployment.

Only the acting operator does. What it knows of them can be lost: one that starts anew reads the Secrets and issues what
is due. The authority's key is in one Secret of the release's namespace, the others' keys in their own; the operator's
own key is nowhere but in this process.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from dormouse_api.identity import BadIdentity, Identity
from dormouse_api.mutual_tls import CA_FILE, CERT_FILE, KEY_FILE, MutualTls
from dormouse_api.names import Role
from dormouse_kube.api import SECRETS, KubeApi
from dormouse_kube.errors import Conflict, KubeError
from dormouse_operator.certificates import BadCertificate, CertificateAuthority, Validity
from dormouse_operator.manifests import FIELD_MANAGER, Manifest
from dormouse_operator.manifests.common import labels_of, metadata_of
from dormouse_operator.manifests.identity import (
    identity_secret_name,
    is_operators_secret,
    release_metadata,
    secret_file,
    secret_manifest,
)
from dormouse_operator.model import Key, Observed
from dormouse_operator.renewal import is_due
from dormouse_operator.writes import Authority

PERIOD_S = 60.0  # between two looks at what may be due, and at the authority, which somebody may have replaced
RETRY_S = 2.0  # after a look at which something failed

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSettings:
    """What the operator's settings say of certificates."""

    namespace: str  # of the release
    release: str
    lifetime: timedelta  # of all but the authority's
    authority_lifetime: timedelta
    authority_secret: str = ""  # one that somebody else keeps (cert-manager); "" = our own, made when it is missing

    @property
    def own_authority_secret(self) -> str:
        """Return the name of the Secret that we keep."""
        return f"{self.release}-authority"

    @property
    def gateway_secret(self) -> str:
        """Return the name of the Secret that the gateways mount."""
        return f"{self.release}-gateway-identity"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One Secret with a certificate."""

    identity: Identity
    metadata: Manifest


class Identities:
    """Owns what is known of all certificates. `tls` gets the operator's own."""

    def __init__(
        self,
        kube: KubeApi,
        tls: MutualTls,
        settings: CertificateSettings,
        *,
        authority: Authority,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Take where Secrets are, and the right to write them."""
        self._kube = kube
        self._tls = tls
        self._settings = settings
        self._authority = authority
        self._now = now
        self._ca: CertificateAuthority | None = None
        self._own: Validity | None = None
        metadata = release_metadata(settings.namespace, settings.gateway_secret, settings.release)
        gateway = Identity(Role.GATEWAY, settings.namespace, settings.release)
        self._wanted: dict[Key, _Wanted] = {
            Key(settings.namespace, settings.gateway_secret): _Wanted(gateway, metadata)
        }
        self._issued: dict[Key, Validity] = {}
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        """Show the counts."""
        return f"Identities({len(self._issued)} of {len(self._wanted)} issued, {self._ca!r})"

    @property
    def authority_expiry_s(self) -> float:
        """Return for how many seconds the authority can still vouch, NaN while it is not known."""
        return (self._ca.validity.end - self._now()).total_seconds() if self._ca else math.nan

    def saw(self, observed: Observed) -> None:
        """Take a deployment as it was just observed."""
        deployment = observed.deployment
        key = Key(deployment.key.namespace, identity_secret_name(deployment.key.name))
        metadata = metadata_of(deployment, key.name, labels_of(deployment))
        known = self._wanted.get(key)
        if deployment.is_deleting or (known and known.metadata == metadata):
            return
        self._wanted[key] = _Wanted(Identity(Role.WORKER, *deployment.key), metadata)
        self._issued.pop(key, None)
        self._news.set()

    def forget(self, key: Key) -> None:
        """Keep no certificate for this deployment any more; its Secret goes with it."""
        secret = Key(key.namespace, identity_secret_name(key.name))
        self._wanted.pop(secret, None)
        self._issued.pop(secret, None)

    async def run(self, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep) -> None:
        """Keep all certificates valid, again and again. Raises NotLeading."""
        while True:
            self._news.clear()
            all_is_well = await self.step()
            await self._until_news(sleep, PERIOD_S if all_is_well else RETRY_S)

    async def step(self) -> bool:
        """Issue what is missing or due; tell whether all of it succeeded. Raises NotLeading."""
        try:
            await self._find_authority()
        except (KubeError, BadCertificate) as error:
            _LOG.error("no certificates can be issued: %s", error)
            return False
        failures = 0
        for key, wanted in list(self._wanted.items()):
            try:
                await self._keep(key, wanted)
            except (KubeError, BadIdentity) as error:
                failures += 1
                _LOG.warning("the certificate in %s was not issued: %s", key, error)
        return not failures

    async def _until_news(self, sleep: Callable[[float], Awaitable[Any]], seconds: float) -> None:
        """Wait so long; a new deployment ends the wait."""
        waits = [asyncio.ensure_future(sleep(seconds)), asyncio.ensure_future(self._news.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _find_authority(self) -> None:
        """Read the authority, or make it; issue anew what another one issued. Raises KubeError, BadCertificate."""
        found = await self._stored_authority() or await self._new_authority()
        if self._ca is None or self._ca.cert_pem != found.cert_pem:
            _LOG.info("certificates are issued by %r", found)
            self._ca, self._own = found, None
            self._issued.clear()
        if self._own is None or is_due(self._own.begin, self._own.end, self._now()):
            own = Identity(Role.OPERATOR, self._settings.namespace, self._settings.release)
            bundle = found.issue(own, now=self._now(), lifetime=self._settings.lifetime)
            self._tls.replace(bundle)
            self._own = found.validity_of(bundle.cert)

    async def _stored_authority(self) -> CertificateAuthority | None:
        """Return the authority that is there, None where we may make one. Raises KubeError, BadCertificate."""
        foreign = self._settings.authority_secret
        name = foreign or self._settings.own_authority_secret
        raw = await self._kube.get(SECRETS, self._settings.namespace, name)
        if raw is not None:
            return CertificateAuthority(secret_file(raw, CERT_FILE), secret_file(raw, KEY_FILE))
        if foreign:
            raise BadCertificate(f"the Secret {self._settings.namespace}/{foreign} is not there")
        return None

    async def _new_authority(self) -> CertificateAuthority:
        """Make the authority, or take the one that another operator made just now. Raises KubeError."""
        settings = self._settings
        made = CertificateAuthority.create(settings.release, now=self._now(), lifetime=settings.authority_lifetime)
        metadata = release_metadata(settings.namespace, settings.own_authority_secret, settings.release)
        self._authority.check()
        with suppress(Conflict):
            await self._kube.create(
                SECRETS, secret_manifest(metadata, {CERT_FILE: made.cert_pem, KEY_FILE: made.key_pem})
            )
            return made
        return await self._stored_authority() or made

    async def _keep(self, key: Key, wanted: _Wanted) -> None:
        """Look at one Secret, and issue its certificate if it is missing or due. Raises KubeError, BadIdentity."""
        validity = self._issued.get(key)
        if validity is None:
            raw = await self._kube.get(SECRETS, *key)
            if raw is not None and not is_operators_secret(raw):
                raise BadIdentity("a Secret of this name is there that somebody else made; remove or rename it")
            validity = self._known(secret_file(raw, CERT_FILE)) if raw else None
        if validity is None or is_due(validity.begin, validity.end, self._now()):
            validity = await self._issue(wanted)
        self._issued[key] = validity

    def _known(self, cert_pem: bytes) -> Validity | None:
        """Return the validity of a certificate of ours, None if it is none."""
        assert self._ca is not None, "the authority was found"
        with suppress(BadCertificate):
            return self._ca.validity_of(cert_pem)
        return None

    async def _issue(self, wanted: _Wanted) -> Validity:
        assert self._ca is not None, "the authority was found"
        bundle = self._ca.issue(wanted.identity, now=self._now(), lifetime=self._settings.lifetime)
        files = {CERT_FILE: bundle.cert, KEY_FILE: bundle.key, CA_FILE: bundle.ca}
        self._authority.check()
        await self._kube.apply(SECRETS, secret_manifest(wanted.metadata, files), field_manager=FIELD_MANAGER)
        _LOG.info("issued a certificate for %s", wanted.identity)
        return self._ca.validity_of(bundle.cert)
