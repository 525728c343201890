"""Another worker of this deployment over gRPC. The library is imported when the first one is asked: few ever are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from dormouse_worker.common.kv_source import KvSource
from dormouse_worker.kv_store.interface import BlockName, Miss
from dormouse_worker.kv_store.peer import MAX_REQUEST_S, PeerFailed

if TYPE_CHECKING:
    from dormouse_api.v1 import kv_blocks_pb2_grpc

FIND_S = 3.0  # of one question: who does not answer is gone


class GrpcPeer:
    """Implements `Peer`. Connects when it is first asked, and once: a renewed certificate is for the next one."""

    def __init__(self, source: KvSource, mutual_tls_dir: str) -> None:
        """`mutual_tls_dir` holds this worker's certificate; "" = workers are plain."""
        self._source = source
        self._mutual_tls_dir = mutual_tls_dir
        self._lock = Lock()
        self._channel: Any = None
        self._stub: kv_blocks_pb2_grpc.KvBlocksStub | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"GrpcPeer({self._source.address}, closed={self._is_closed})"

    def find(self, realm: bytes, names: Sequence[BlockName]) -> Sequence[bool]:
        """See `Peer`."""
        with self._mapped():
            from dormouse_api.v1 import kv_blocks_pb2 as pb

            request = pb.KvBlockNames(realm=realm, names=names)
            found = self._connected().Find(request, timeout=FIND_S, metadata=self._proof())
        return list(found.found)

    def read(self, realm: bytes, names: Sequence[BlockName], file_bytes: int) -> Iterator[bytes]:
        """See `Peer`."""
        with self._mapped():
            from dormouse_api.v1 import kv_blocks_pb2 as pb

            blocks = pb.KvBlockNames(realm=realm, names=names)
            request = pb.ReadKvBlocksRequest(blocks=blocks, block_bytes=file_bytes)
            for part in self._connected().Read(request, timeout=MAX_REQUEST_S, metadata=self._proof()):
                yield part.data

    def close(self) -> None:
        """See `Peer`."""
        with self._lock:
            self._is_closed = True
            channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            channel.close()

    def _connected(self) -> kv_blocks_pb2_grpc.KvBlocksStub:
        from dormouse_api.v1.kv_blocks_pb2_grpc import KvBlocksStub

        with self._lock:
            if self._is_closed:
                raise PeerFailed(Miss.LATE, f"{self._source.address} is not asked any more")
            if self._stub is None:
                self._channel = self._open()
                self._stub = KvBlocksStub(self._channel)
            return self._stub

    def _open(self) -> Any:
        import grpc

        from dormouse_api.limits import channel_options

        options: list[tuple[str, Any]] = [*channel_options(), ("grpc.use_local_subchannel_pool", 1)]
        if not self._mutual_tls_dir:
            return grpc.insecure_channel(self._source.address, options=options)
        from dormouse_api.identity import server_name
        from dormouse_api.mutual_tls import read_bundle
        from dormouse_api.names import Role

        bundle = read_bundle(Path(self._mutual_tls_dir))
        options.append(("grpc.ssl_target_name_override", server_name(Role.WORKER)))
        credentials = grpc.ssl_channel_credentials(bundle.ca, bundle.key, bundle.cert)
        return grpc.secure_channel(self._source.address, credentials, options=options)

    def _proof(self) -> tuple[tuple[str, str | bytes], ...]:
        from dormouse_api.names import METADATA_TICKET

        return tuple((METADATA_TICKET, ticket) for ticket in self._source.tickets)

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        """Turn what gRPC raises into PeerFailed: ValueError where the channel was closed meanwhile."""
        import grpc

        from dormouse_api.mutual_tls import TlsError

        late = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
        try:
            yield
        except grpc.RpcError as error:
            code = getattr(error, "code", lambda: None)()  # each that is raised is a call, too; stubs say so of none
            raise PeerFailed(Miss.LATE if code in late else Miss.IO, f"{self._source.address}: {code}") from error
        except (TlsError, ValueError) as error:
            raise PeerFailed(Miss.LATE if self._is_closed else Miss.IO, str(error)) from error
