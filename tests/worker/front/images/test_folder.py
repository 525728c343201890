"""Where images lie: made with the front, gone with it, and the folders of fronts that were killed go, too."""

from dormouse_worker.front.images import folder
from dormouse_worker.front.images.folder import ImageFolder


def test_only_folders_of_dead_fronts_are_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "SHARED_MEMORY", tmp_path)
    (dead := tmp_path / "dormouse-images-dead").mkdir()
    (dead / "lock").touch()
    (dead / "1.safetensors").touch()
    (other := tmp_path / "somebody-elses").mkdir()
    first = ImageFolder()
    (first.path / "2.safetensors").touch()
    second = ImageFolder()
    assert not dead.exists()
    assert other.exists()
    assert (first.path / "2.safetensors").exists()
    for one in (first, second):
        one.close()
        assert not one.path.exists()


def test_without_shared_memory_there_is_a_folder_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "SHARED_MEMORY", tmp_path / "missing")
    made = ImageFolder()
    assert made.path.is_dir()
    made.close()
