"""The .proto files can be compiled for Go as they are: each says where its code belongs, all the same place."""

import pytest

from dormouse_api.v1 import gateway_control_pb2, inference_pb2, kv_blocks_pb2, relay_pb2, worker_control_pb2

MODULES = (gateway_control_pb2, inference_pb2, kv_blocks_pb2, relay_pb2, worker_control_pb2)
FILES = [module.DESCRIPTOR for module in MODULES]


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_every_file_names_its_go_package(file):
    assert file.GetOptions().go_package == "dormouse.dev/api/v1;dormousev1"
