"""What tests of certificates share: an operator's certificates over a cluster in memory, what workers mount."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from dormouse_api.mutual_tls import MutualTls
from dormouse_kube.api import SECRETS
from dormouse_kube.testing import FakeKube
from dormouse_operator.certificates.identities import CertificateSettings, Identities
from dormouse_operator.errors import NotLeading
from dormouse_operator.manifests.identity import identity_secret_name, identity_volume, secret_file, secret_manifest
from dormouse_operator.model import Key
from dormouse_operator.testing.nouns import a_situation, but

SETTINGS = CertificateSettings(
    namespace="system", release="r", lifetime=timedelta(days=1), authority_lifetime=timedelta(days=3650)
)
CA, GATEWAY = "r-authority", "r-gateway-identity"


class Lease:
    """The right to act."""

    epoch = 1
    leads = True

    def check(self):
        if not self.leads:
            raise NotLeading("another one leads")


class House:
    """An operator's certificates over a cluster in memory, and a clock that can be moved."""

    def __init__(self, kube=None, settings=SETTINGS):
        self.kube = kube or FakeKube()
        self.now = datetime.now(UTC)
        self.tls, self.lease = MutualTls(), Lease()
        self.identities = Identities(self.kube, self.tls, settings, authority=self.lease, now=lambda: self.now)

    def secret(self, name, namespace="system"):
        return self.kube.peek(SECRETS, namespace, name)

    def cert(self, name, namespace="system"):
        return secret_file(self.secret(name, namespace), "tls.crt")

    def writes(self):
        return [call.verb for call in self.kube.calls if call.verb in {"create", "apply"}]


def a_deployment(name="tiny", uid="", **fields):
    seen = a_situation()
    key = Key("team", name)
    return but(seen, deployment=replace(seen.deployment, key=key, uid=uid or f"uid-{name}", **fields))


def neighbours(num=2):
    """Return names of deployments whose certificates are in the same Secret."""
    wanted = identity_secret_name("tiny")
    found = (name for name in map("d{}".format, itertools.count()) if identity_secret_name(name) == wanted)
    return ["tiny", *itertools.islice(found, num - 1)]


def secret_of(house, name="tiny"):
    return house.secret(identity_secret_name(name), "team")


def files_of(house, name="tiny"):
    """Return what a worker of the deployment finds mounted."""
    raw, items = secret_of(house, name), identity_volume(name)["secret"]["items"]
    return {item["path"]: secret_file(raw, item["key"]) for item in items}


def owners_of(house, name="tiny"):
    return [owner["name"] for owner in secret_of(house, name)["metadata"]["ownerReferences"]]


def authority_secret(name, authority):
    files = {"tls.crt": authority.cert_pem, "tls.key": authority.key_pem}
    return secret_manifest({"namespace": "system", "name": name}, files)
