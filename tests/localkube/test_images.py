"""Names in the loopback registry, which tags are outdated, and the archive of the pause image."""

import gzip
import hashlib
import io
import json
import tarfile

import pytest

from localkube import node, oci, registry
from localkube.errors import HostError
from localkube.registry import Tag
from localkube.spec import Paths


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("ghcr.io/dormouse/worker:T", "dormouse/worker:T"),
        ("localhost/app:1", "app:1"),
        ("localhost:5001/app:1", "app:1"),
        ("127.0.0.1:5000/a/b:1", "a/b:1"),
        ("dormouse/worker:1", "dormouse/worker:1"),
        ("app:1.2", "app:1.2"),
    ],
)
def test_the_loopback_registry_knows_images_without_their_host(image, name):
    assert registry.mirrored_name(image) == name


@pytest.mark.parametrize("image", ["app", "ghcr.io/a/b", "localhost:5000/app", "a/b@sha256:00", "", "app:"])
def test_an_image_without_a_tag_is_refused_by_name(image):
    with pytest.raises(HostError, match="a name with a tag is needed"):
        registry.mirrored_name(image)


def tag(name, modified_s, digest=None, repository="worker"):
    return Tag(repository, name, digest or f"sha256:{name}", modified_s)


def test_the_two_newest_tags_of_each_repository_stay():
    tags = [tag("c", 3), tag("a", 1), tag("b", 2), tag("x", 0, repository="gateway")]
    assert [removed.name for removed in registry.tags_to_remove(tags)] == ["a"]


def test_a_tag_whose_image_a_newer_tag_has_stays_for_removing_it_would_remove_both():
    tags = [tag("a", 1, "sha256:same"), tag("b", 2), tag("c", 3, "sha256:same")]
    assert registry.tags_to_remove(tags) == []


def test_outdated_tags_come_oldest_first():
    tags = [tag(str(n), n) for n in (5, 1, 4, 2, 3)]
    assert [removed.name for removed in registry.tags_to_remove(tags)] == ["1", "2", "3"]


def test_tags_are_read_from_the_registrys_files(tmp_path):
    paths = Paths(tmp_path)
    link = registry._repositories(paths) / "dormouse/worker/_manifests/tags/T/current/link"
    link.parent.mkdir(parents=True)
    link.write_text("sha256:abc")
    (found,) = registry.list_tags(paths)
    assert (found.repository, found.name, found.digest) == ("dormouse/worker", "T", "sha256:abc")


def test_an_empty_registry_has_no_tags(tmp_path):
    assert registry.list_tags(Paths(tmp_path)) == []


def unpack(archive):
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {member.name: opened.extractfile(member).read() for member in opened.getmembers()}


def test_every_blob_of_the_archive_has_the_digest_it_is_named_by():
    files = unpack(oci.image_archive("pause:1", b"binary", architecture="amd64", file="entry"))
    blobs = {name: content for name, content in files.items() if name.startswith("blobs/sha256/")}
    assert len(blobs) == 3
    for name, content in blobs.items():
        assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"


def test_the_archive_names_its_image_and_holds_the_binary_as_entry_point():
    files = unpack(oci.image_archive("pause:1", b"binary", architecture="arm64", file="entry"))
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "pause:1"
    manifest = json.loads(files["blobs/" + entry["digest"].replace(":", "/")])
    layer = gzip.decompress(files["blobs/" + manifest["layers"][0]["digest"].replace(":", "/")])
    assert unpack(layer) == {"entry": b"binary"}
    settings = json.loads(files["blobs/" + manifest["config"]["digest"].replace(":", "/")])
    assert settings["architecture"] == "arm64"
    assert settings["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]


def test_the_same_binary_gives_the_same_archive():
    first, second = (oci.image_archive("p:1", b"x", architecture="amd64", file="entry") for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("size", "head"), [(0, b"\x0a\x00"), (127, b"\x0a\x7f"), (128, b"\x0a\x80\x01"), (300, b"\x0a\xac\x02")]
)
def test_names_are_framed_as_protobuf_does(size, head):
    assert node._field(1, b"n" * size) == head + b"n" * size
