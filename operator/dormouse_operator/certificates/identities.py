"""Keeps certificates: the authority's, the operator's own, the gateways', and one for the workers of each deployment.

Only the acting operator does. What it knows of them can be lost: one that starts anew reads the Secrets and issues what
is due. The authority's key is in one Secret of the release's namespace, the others' keys in their own; the operator's
own key is nowhere but in this process.

A Secret is written as a whole, in place of the version that was just read: what stands in it of deployments that this
operator has not seen yet stays.

Whom to trust is read from the release's own Secrets alone: a worker's stands in a namespace whose people may write it.
It tells which of the authorities that are known already it trusts, and which of them issued its certificate.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from dormouse_api.identity import CA_FILE, CERT_FILE, KEY_FILE, BadIdentity, Identity
from dormouse_api.mutual_tls import Bundle, MutualTls
from dormouse_api.names import Role
from dormouse_kube.api import SECRETS, KubeApi
from dormouse_kube.errors import Conflict, KubeError
from dormouse_operator.act.writes import Authority
from dormouse_operator.certificates.authority import BadCertificate, CertificateAuthority, certificates_in, held_of
from dormouse_operator.certificates.shelves import Holder, Shelf
from dormouse_operator.decide.renewal import is_due
from dormouse_operator.decide.rotation import Held, Rotation
from dormouse_operator.decide.situation import Situation
from dormouse_operator.manifests import FIELD_MANAGER, Manifest
from dormouse_operator.manifests.common import owner_of, owner_reference
from dormouse_operator.manifests.identity import (
    Contents,
    contents_of,
    identity_secret_name,
    is_operators_secret,
    release_metadata,
    secret_file,
    secret_manifest,
    shared_metadata,
)
from dormouse_operator.model import Key

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
        self._gateway = Shelf(release_metadata(settings.namespace, settings.gateway_secret, settings.release))
        self._gateway.add(Holder(Identity(Role.GATEWAY, settings.namespace, settings.release)))
        self._shelves = {self._gateway.key: self._gateway}
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        """Show the counts."""
        shelves = self._shelves.values()
        issued, wanted = sum(len(each.held) for each in shelves), sum(each.num_holders for each in shelves)
        return f"Identities({issued} of {wanted} issued, {self._ca!r})"

    @property
    def authority_expiry_s(self) -> float:
        """Return for how many seconds the authority can still vouch, NaN while it is not known."""
        return (self._ca.validity.end - self._now()).total_seconds() if self._ca else math.nan

    def saw(self, situation: Situation) -> None:
        """Take a deployment as it was just observed."""
        if not situation.deployment.is_deleting:
            shelf = self._hold(situation.deployment.key, owner_of(situation.deployment))
            shelf.wait(situation.deployment.key.name, self._now(), is_waiting=situation.waits_for_volumes)

    def rejected(self, key: Key, uid: str) -> None:
        """Keep the certificate of a deployment whose spec cannot be read: its workers serve on."""
        self._hold(key, owner_reference(key.name, uid))

    def _hold(self, deployment: Key, owner: Manifest) -> Shelf:
        key = Key(deployment.namespace, identity_secret_name(deployment.name))
        shelf = self._shelves.setdefault(key, Shelf(shared_metadata(*key)))
        if shelf.add(Holder(Identity(Role.WORKER, *deployment), owner)):
            self._news.set()
        return shelf

    def forget(self, key: Key) -> None:
        """Keep no certificate for this deployment any more; its files go, and the Secret with its last deployment."""
        if shelf := self._shelves.get(Key(key.namespace, identity_secret_name(key.name))):
            shelf.remove(key.name)
            self._news.set()

    async def run(self, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep) -> None:
        """Keep all certificates valid, again and again. Raises NotLeading."""
        while True:
            self._news.clear()
            all_is_well = await self.step()
            await self._until_news(sleep, PERIOD_S if all_is_well else RETRY_S)

    async def step(self) -> bool:
        """Issue what is missing or due; return whether all of it succeeded. Raises NotLeading."""
        try:
            await self._find_authority()
            await self._read(self._gateway, self._present.root_pem)  # nobody tells when somebody deletes it
        except (KubeError, BadCertificate, BadIdentity) as error:
            _LOG.error("no certificates can be issued: %s", error)
            return False
        trusted = self._trusted()
        self._keep_own(trusted)
        failed = await self._each(trusted)
        self._shelves = {key: shelf for key, shelf in self._shelves.items() if not shelf.is_over}
        self._look(failed)
        return not failed

    def _look(self, failed: set[Key]) -> None:
        """Tell the rotation what all have; without the workers for whom it failed, when they were waited for enough."""
        now = self._now()
        left_out = failed - {self._gateway.key} if self._rotation.may_leave_out(now) else set()
        counted = [shelf for key, shelf in self._shelves.items() if key not in left_out]
        if all(len(shelf.held) == shelf.num_holders for shelf in counted):
            held = [each for shelf in counted for each in shelf.held]
            self._rotation.look((*held, *filter(None, [self._own])), self._present.root_pem, now)

    async def _each(self, trusted: bytes) -> set[Key]:
        """Keep every Secret; return for which it failed. Raises NotLeading."""
        failed = set()
        for key, shelf in sorted(self._shelves.items()):
            try:
                await self._keep(shelf, trusted)
            except (KubeError, BadIdentity) as error:
                failed.add(key)
                _LOG.warning("the certificates in %s were not issued: %s", key, error)
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

    async def _read(self, shelf: Shelf, known: bytes) -> Contents:
        """Know what a Secret holds of the known authorities, and return it. Raises KubeError, BadIdentity."""
        raw = await self._kube.get(SECRETS, *shelf.key)
        if raw is not None and not is_operators_secret(raw):
            shelf.disown()
            raise BadIdentity(
                f"a Secret of this name exists that the operator did not make; remove or rename {shelf.key}"
            )
        stored = contents_of(raw)
        # The release's own Secret says whom we issued with before this process; a tenant's says nothing of the kind.
        former = certificates_in(stored.files.get(CA_FILE, b"")) if shelf is self._gateway else ()
        shelf.learn(stored, certificates_in(known) + former)
        return stored

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
        ours = filter(None, [*self._gateway.held, self._own])
        known = {cert for held in ours for cert in held.trusts}
        known |= {self._former.root_pem} if self._former else set()
        return b"".join((present.cert_pem, *sorted(known.difference(certificates_in(present.cert_pem)))))

    def _issuer(self) -> CertificateAuthority:
        """Return who issues: the former one as long as somebody may not trust the present one yet."""
        former, now = self._former, self._now()
        is_needed = former is not None and not self._rotation.may_issue(now)
        return former if former and is_needed and now < former.validity.end else self._present

    def _is_due(self, held: Held | None) -> bool:
        """Return whether another one is needed: there is none, its time has come, or a former authority issued it."""
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

    async def _keep(self, shelf: Shelf, trusted: bytes) -> None:
        """Write one Secret, if what it holds is missing, due, or trusts others. Raises KubeError, NotLeading."""
        shelf.doubt(self._now())
        if shelf.is_known and shelf.says(trusted) and not shelf.due(self._is_due):
            return
        stored = await self._read(shelf, trusted)
        due = shelf.due(self._is_due)
        if due or not shelf.says(trusted):
            lifetime = self._settings.lifetime
            issued = [self._issuer().issue(each, now=self._now(), lifetime=lifetime) for each in due]
            await self._write(shelf, shelf.contents(stored, issued, trusted), trusted)
            names = ", ".join(map(str, due))
            _LOG.info("wrote %s: %s", shelf.key, f"certificates for {names}" if names else "whom to trust")

    async def _write(self, shelf: Shelf, contents: Contents, trusted: bytes) -> None:
        """Write a Secret and know what it holds. Raises KubeError, NotLeading."""
        self._authority.check()
        if manifest := shelf.manifest(contents):
            await self._kube.apply(SECRETS, manifest, field_manager=FIELD_MANAGER)
        shelf.learn(contents, certificates_in(trusted))
