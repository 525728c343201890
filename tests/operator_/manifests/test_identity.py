"""What is read of Secrets that hold identities."""

import pytest

from dormouse_operator.manifests.identity import secret_file


@pytest.mark.parametrize("data", [None, {}, {"tls.crt": ""}, {"tls.crt": "no base64"}, {"tls.crt": 7}])
def test_a_file_that_cannot_be_read_is_as_one_that_is_not_there(data):
    assert secret_file({"data": data}, "tls.crt") == b""


def test_a_file_is_what_its_base64_says():
    assert secret_file({"data": {"tls.crt": "YSBmaWxl"}}, "tls.crt") == b"a file"
