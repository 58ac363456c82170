import pytest

from lib.errors import Fault, UsageError
from lib.run.growing_files import GrowingFiles

HEADER = b"episode,step\n"


@pytest.fixture
def saved(tmp_path):
    """Files of a run folder, and their state."""
    (tmp_path / "episodes.csv").write_bytes(HEADER + b"1,100\n2,200\n")
    (tmp_path / "events.out.tfevents.1").write_bytes(b"12345")
    return GrowingFiles(tmp_path).state_dict()


def test_files_are_truncated_to_their_saved_sizes_and_new_ones_removed(tmp_path, saved, caplog):
    before = (tmp_path / "episodes.csv").read_bytes()
    with (tmp_path / "episodes.csv").open("ab") as file:
        file.write(b"3,300\n")
    (tmp_path / "events.out.tfevents.2").touch()
    files = GrowingFiles(tmp_path)
    files.require_unchanged(saved)
    files.load_state_dict(saved)
    assert (tmp_path / "episodes.csv").read_bytes() == before
    assert not (tmp_path / "events.out.tfevents.2").exists()
    assert caplog.records == []


def test_a_missing_file_is_reported(tmp_path, saved, caplog):
    (tmp_path / "episodes.csv").unlink()
    files = GrowingFiles(tmp_path)
    files.require_unchanged(saved)
    files.load_state_dict(saved)
    assert f"{tmp_path / 'episodes.csv'} is missing: its first 25 bytes are lost" in caplog.text
    assert "tfevents" not in caplog.text


def test_each_state_is_recorded_and_a_loaded_one_before_files_are_truncated(tmp_path, saved):
    recorded = []

    def record(state):
        recorded.append((state, (tmp_path / "episodes.csv").stat().st_size))

    files = GrowingFiles(tmp_path, record=record)
    assert files.state_dict() == saved
    with (tmp_path / "episodes.csv").open("ab") as file:
        file.write(b"3,300\n")
    files.load_state_dict(saved)
    assert recorded == [(saved, 25), (saved, 31)]


@pytest.mark.parametrize("name", ["episodes.csv", "events.out.tfevents.1"])
@pytest.mark.parametrize("cut", [0, 1])
def test_a_changed_file_is_refused(tmp_path, saved, name, cut):
    content = bytearray((tmp_path / name).read_bytes())
    content[4] ^= 1 - cut
    (tmp_path / name).write_bytes(content[: len(content) - cut])
    with pytest.raises(UsageError, match=f"{name} was changed after it was written; restore it, or delete it"):
        GrowingFiles(tmp_path).require_unchanged(saved)


def test_sizes_of_an_earlier_version_are_accepted_and_other_content_is_not(tmp_path, saved):
    sizes = {name: state["size"] for name, state in saved.items()}
    GrowingFiles(tmp_path).require_unchanged(sizes)
    for wrong in ([], {"episodes.csv": "x"}, {"episodes.csv": {"size": -1}}, {"episodes.csv": {"sha256": "0"}}):
        with pytest.raises(Fault, match="the checkpoint"):
            GrowingFiles(tmp_path).require_unchanged(wrong)


def test_a_file_that_was_deleted_since_the_last_checkpoint_is_reported(tmp_path, caplog):
    events = tmp_path / "events.out.tfevents.1"
    events.write_bytes(b"events")
    files = GrowingFiles(tmp_path)
    files.state_dict()
    events.unlink()
    assert files.state_dict() == {}
    assert f"{events} was deleted: its content is lost" in caplog.text
