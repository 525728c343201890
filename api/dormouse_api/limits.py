"""Limits that both sides of the wire know, and the gRPC options that enforce the ones gRPC can enforce.

Every limit is checked before anything is allocated for the request.
"""

from __future__ import annotations

MAX_MESSAGE_BYTES = 1 << 20  # one request message; also the largest response, which streams in small pieces
MAX_IMAGES = 16  # in one request, and videos
MAX_IMAGE_BYTES = 20 << 20  # of one of them, as a file
MAX_IMAGES_BYTES = 32 << 20  # of all of them together, beside MAX_MESSAGE_BYTES of everything else
MAX_FRAMES = 256  # of all videos in one request
MIN_FPS, MAX_FPS = 0.01, 240.0
MAX_AUDIO_BYTES = 25 << 20  # of a file, beside MAX_MESSAGE_BYTES of everything else; less than images may have
MAX_TEMPERATURES = 8
MAX_AUDIO_PROMPT_CHARS = 4096  # a window takes far fewer
MAX_METADATA_BYTES = 8 << 10
MAX_REQUEST_ID_CHARS = 128
MAX_ADDRESS_CHARS = 256  # host:port
MAX_EPOCH = 2**31 - 1  # of an operator: its Lease counts in 32 bits
MAX_STOP_STRINGS = 4
MAX_STOP_STRING_BYTES = 64
MAX_STOP_TOKEN_IDS = 64
MAX_LOGPROBS = 20
MAX_REPETITION_PENALTY = 100.0
MAX_PENALTY = 2.0  # presence and frequency, both ways
MAX_LOGIT_BIASES = 300
MAX_LOGIT_BIAS = 100.0  # both ways
MAX_ALLOWED_TOKEN_IDS = 1024
MAX_BAD_WORDS = 64
MAX_BAD_WORD_BYTES = 64
MAX_CHOICES = 16
MAX_STRUCTURED_OUTPUTS_BYTES = 256 << 10  # of a schema, a grammar, a structural tag or all choices together
MAX_STRUCTURED_OUTPUTS_CHOICES = 1024
MAX_PRIORITY = 100  # both ways
MAX_STREAM_INTERVAL = 1024  # tokens: with log-probabilities so many still fit a message
MAX_CACHE_SALT_CHARS = 128
MAX_CHAT_MESSAGES = 1024
MAX_TOOLS = 128
MAX_EMBED_INPUTS = 2048  # texts in one message
MAX_SCORE_DOCUMENTS = 2048  # in one message
MAX_LOGPROB_TOKEN_IDS = 32  # with as many likeliest ones, positions of a message still fit it
MAX_DECIDE_QUESTIONS = 400
MAX_DECIDE_CHOICES = 255
MAX_DECIDE_LEVELS = 10
MAX_DECIDE_TOKENS = 1 << 22  # of the prompts of all questions: a short message repeats a long state many times
MAX_LABEL_BYTES = 64
MAX_CACHE_KEY_BYTES = 256
FLOAT_BYTES = 4  # of a number of a vector, in a message

_SPARE_BYTES = 1 << 20
_KEEPALIVE_TIME_MS = 20_000
_KEEPALIVE_TIMEOUT_MS = 10_000
_MIN_PING_INTERVAL_MS = 10_000  # below the keepalive time of our own clients, or they would be sent away

GrpcOption = tuple[str, int]


def server_options() -> list[GrpcOption]:
    """Return the options of every gRPC server: message limits, keepalive, and no silent sharing of a port."""
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", 1024),
        ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        ("grpc.server_handshake_timeout_ms", 5_000),
        ("grpc.so_reuseport", 0),  # by default a second server takes half of the traffic without an error
    ]


def roomy(options: list[GrpcOption]) -> list[GrpcOption]:
    """Return options with room for images, and for somewhat more, to be refused with a sentence of ours."""
    most = MAX_MESSAGE_BYTES + MAX_IMAGES_BYTES + _SPARE_BYTES
    return list((dict(options) | {"grpc.max_receive_message_length": most}).items())


def channel_options() -> list[GrpcOption]:
    """Return the options of every gRPC channel between our own parts."""
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES + MAX_IMAGES_BYTES),
        ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
    ]
