"""Certificates say who is who, and the API server would accept them."""

import json
import stat

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from localkube import pki, spec
from localkube.spec import Paths


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    made = Paths(tmp_path_factory.mktemp("cache"))
    pki.ensure(made)
    return made


def certificate(paths, name):
    return x509.load_pem_x509_certificate((paths.pki / f"{name}.crt").read_bytes())


def names(subject, oid):
    return [attribute.value for attribute in subject.get_attributes_for_oid(oid)]


@pytest.mark.parametrize(
    "subject", [*pki.SERVERS, *pki.API_SERVER_CLIENTS, *pki.USERS], ids=lambda subject: subject.file
)
def test_every_certificate_is_signed_by_our_authority_and_names_its_user(paths, subject):
    made = certificate(paths, subject.file)
    made.verify_directly_issued_by(certificate(paths, "ca"))
    assert names(made.subject, NameOID.COMMON_NAME) == [subject.user]


def test_the_api_server_is_known_by_every_name_that_clients_use(paths):
    names_ = certificate(paths, "apiserver").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = [str(address) for address in names_.get_values_for_type(x509.IPAddress)]
    assert addresses == ["127.0.0.1", spec.NODE_IP, spec.API_SERVICE_IP]
    assert "kubernetes.default.svc.cluster.local" in names_.get_values_for_type(x509.DNSName)


def test_a_clients_certificate_cannot_serve(paths):
    uses = certificate(paths, "scheduler").extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_the_kubelet_is_its_node_and_the_administrator_may_do_everything(paths):
    assert names(certificate(paths, "kubelet").subject, NameOID.ORGANIZATION_NAME) == ["system:nodes"]
    assert names(certificate(paths, "admin").subject, NameOID.ORGANIZATION_NAME) == ["system:masters"]


def test_the_authoritys_key_is_never_written(paths):
    assert not (paths.pki / "ca.key").exists()


def test_nobody_else_can_read_keys_and_kubeconfig(paths):
    for path in (paths.kubeconfig, paths.pki / "admin.key", paths.pki / "service-accounts.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_kubeconfig_is_the_administrators(paths):
    assert json.loads(paths.kubeconfig.read_text())["users"][0]["name"] == "localkube:admin"


def test_a_finished_set_is_kept_and_a_half_written_one_is_made_anew(tmp_path):
    paths = Paths(tmp_path)
    pki.ensure(paths)
    first = (paths.pki / "ca.crt").read_bytes()
    pki.ensure(paths)
    assert (paths.pki / "ca.crt").read_bytes() == first
    (paths.pki / pki.COMPLETE).unlink()
    pki.ensure(paths)
    assert (paths.pki / "ca.crt").read_bytes() != first
