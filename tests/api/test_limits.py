"""Limits and the gRPC options made of them."""

from __future__ import annotations

from dormouse_api import limits


def test_a_ping_of_our_own_clients_never_comes_too_often_for_our_servers():
    server, channel = dict(limits.server_options()), dict(limits.channel_options())
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < channel["grpc.keepalive_time_ms"]


def test_both_sides_agree_on_the_message_size():
    server, channel = dict(limits.server_options()), dict(limits.channel_options())
    assert server["grpc.max_receive_message_length"] == channel["grpc.max_receive_message_length"] == 1 << 20
    assert server["grpc.max_send_message_length"] == limits.MAX_MESSAGE_BYTES == 1 << 20
    with_images = dict(limits.roomy(limits.server_options()))["grpc.max_receive_message_length"]
    assert channel["grpc.max_send_message_length"] == limits.MAX_MESSAGE_BYTES + limits.MAX_IMAGES_BYTES < with_images


def test_a_port_is_never_shared_silently():
    assert dict(limits.server_options())["grpc.so_reuseport"] == 0
