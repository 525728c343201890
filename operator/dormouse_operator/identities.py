"""Keeps certificates: the authority's, the operator's own, the gateways', and one for the workers of each deployment.

Only the acting operator does. What it knows of them can be lost: one that starts anew reads the Secrets and issues what
is due. The authority's key is in one Secret of the release's namespace, the others' keys in their own; the operator's
own key is nowhere but in this process.

Whom to trust is read from the release's own Secrets alone: a worker's stands in a namespace whose people may write it.
It tells which of the authorities that are known already it trusts, and which of them issued its certificate.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from dormouse_api.identity import BadIdentity, Identity
from dormouse_api.mutual_tls import CA_FILE, CERT_FILE, KEY_FILE, Bundle, MutualTls
from dormouse_api.names import Role
from dormouse_kube.api import SECRETS, KubeApi
from dormouse_kube.errors import Conflict, KubeError
from dormouse_operator.certificates import BadCertificate, CertificateAuthority, certificates_in, held_of
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
from dormouse_operator.rotation import Held, Rotation
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
        self._former: CertificateAuthority | None = None  # who issues until everybody trusts the present one
        self._rotation = Rotation(now())
        self._own: Held | None = None
        self._bundle: Bundle | None = None
        metadata = release_metadata(settings.namespace, settings.gateway_secret, settings.release)
        gateway = Identity(Role.GATEWAY, settings.namespace, settings.release)
        self._gateway = Key(settings.namespace, settings.gateway_secret)
        self._wanted: dict[Key, _Wanted] = {self._gateway: _Wanted(gateway, metadata)}
        self._issued: dict[Key, Held] = {}
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
            await self._read(self._gateway, self._present.root_pem)
        except (KubeError, BadCertificate, BadIdentity) as error:
            _LOG.error("no certificates can be issued: %s", error)
            return False
        trusted = self._trusted()
        self._keep_own(trusted)
        failed = await self._each(lambda key: self._read(key, trusted), self._wanted.keys())
        failed |= await self._each(lambda key: self._keep(key, trusted), self._wanted.keys() - failed)
        self._look(failed)
        return not failed

    def _look(self, failed: set[Key]) -> None:
        """Tell the rotation what all have; without the workers for whom it failed, when they were waited for enough."""
        now = self._now()
        left_out = failed - {self._gateway} if self._rotation.may_leave_out(now) else set()
        counted = self._wanted.keys() - left_out
        if self._issued.keys() >= counted:
            held = (*(self._issued[key] for key in counted), *filter(None, [self._own]))
            self._rotation.look(held, self._present.root_pem, now)

    async def _each(self, do: Callable[[Key], Awaitable[None]], keys: Iterable[Key]) -> set[Key]:
        """Do it for these Secrets; return for which it failed. Raises NotLeading."""
        failed = set()
        for key in sorted(keys):
            try:
                await do(key)
            except (KubeError, BadIdentity) as error:
                failed.add(key)
                _LOG.warning("the certificate in %s was not issued: %s", key, error)
        return failed

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
        """Read the authority, or make it. Raises KubeError, BadCertificate."""
        found = await self._stored_authority() or await self._new_authority()
        if self._ca is None or self._ca.cert_pem != found.cert_pem:
            _LOG.info("certificates are issued by %r", found)
            self._former, self._ca = self._ca, found
            self._rotation = Rotation(self._now())

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

    async def _read(self, key: Key, known: bytes) -> None:
        """Know what a Secret holds of the known authorities, if it is not known. Raises KubeError, BadIdentity."""
        if key in self._issued:
            return
        raw = await self._kube.get(SECRETS, *key)
        if raw is not None and not is_operators_secret(raw):
            raise BadIdentity(f"a Secret of this name is there that somebody else made; remove or rename {key}")
        cert, ca = (secret_file(raw or {}, name) for name in (CERT_FILE, CA_FILE))
        # The release's own Secret says whom we issued with before this process; a tenant's says nothing of the kind.
        authorities = certificates_in(known) + (certificates_in(ca) if key == self._gateway else ())
        if found := held_of(cert, ca, authorities):
            self._issued[key] = found

    @property
    def _present(self) -> CertificateAuthority:
        assert self._ca is not None, "the authority was found"
        return self._ca

    def _trusted(self) -> bytes:
        """Return whom everybody shall trust: the present authority, and those of before until nobody needs them."""
        present = self._present
        if self._rotation.may_drop(self._now()):
            self._former = None
            return present.cert_pem
        ours = filter(None, [self._issued.get(self._gateway), self._own])
        known = {cert for held in ours for cert in held.trusts}
        known |= {self._former.root_pem} if self._former else set()
        return b"".join((present.cert_pem, *sorted(known.difference(certificates_in(present.cert_pem)))))

    def _issuer(self) -> CertificateAuthority:
        """Return who issues: the former one as long as somebody may not trust the present one yet."""
        former, now = self._former, self._now()
        is_needed = former is not None and not self._rotation.may_issue(now)
        return former if former and is_needed and now < former.validity.end else self._present

    def _is_due(self, held: Held | None) -> bool:
        """Tell whether another one is needed: there is none, its time has come, or a former authority issued it."""
        if held is None:
            return True
        is_former = held.issuer != self._present.root_pem
        is_over = is_former and self._rotation.may_issue(self._now())
        return is_over or is_due(held.begin, held.end, self._now())

    def _keep_own(self, trusted: bytes) -> None:
        """Have a certificate ourselves; our key is nowhere else."""
        if not self._is_due(self._own) and self._own and self._own.ca == trusted:
            return
        bundle = self._bundle
        if bundle is None or self._is_due(self._own):
            identity = Identity(Role.OPERATOR, self._settings.namespace, self._settings.release)
            bundle = self._issuer().issue(identity, now=self._now(), lifetime=self._settings.lifetime)
        self._bundle = replace(bundle, ca=trusted)
        self._tls.replace(self._bundle)
        self._own = held_of(bundle.cert, trusted, certificates_in(trusted))

    async def _keep(self, key: Key, trusted: bytes) -> None:
        """Write one Secret, if what it holds is missing, due, or trusts others. Raises KubeError, NotLeading."""
        held = self._issued.get(key)
        if self._is_due(held):
            bundle = self._issuer().issue(self._wanted[key].identity, now=self._now(), lifetime=self._settings.lifetime)
            await self._write(key, bundle.cert, bundle.key, trusted)
            _LOG.info("issued a certificate for %s", self._wanted[key].identity)
        elif held and held.ca != trusted:
            raw = await self._kube.get(SECRETS, *key) or {}
            await self._write(key, secret_file(raw, CERT_FILE), secret_file(raw, KEY_FILE), trusted)
            _LOG.info("told %s whom to trust", self._wanted[key].identity)

    async def _write(self, key: Key, cert: bytes, private_key: bytes, trusted: bytes) -> None:
        """Write a Secret and know what it holds. Raises KubeError, NotLeading."""
        self._authority.check()
        files = {CERT_FILE: cert, KEY_FILE: private_key, CA_FILE: trusted}
        await self._kube.apply(SECRETS, secret_manifest(self._wanted[key].metadata, files), field_manager=FIELD_MANAGER)
        self._issued.pop(key, None)
        if found := held_of(cert, trusted, certificates_in(trusted)):
            self._issued[key] = found
