from lib.run.growing_files import GrowingFiles


def test_a_file_that_is_shorter_than_its_saved_size_is_left_alone_with_a_warning(tmp_path, caplog):
    for name in ("episodes.csv", "events.out.tfevents.1"):
        (tmp_path / name).write_bytes(b"12345")
    GrowingFiles(tmp_path).load_state_dict({"episodes.csv": 8, "events.out.tfevents.1": 3})
    assert (tmp_path / "episodes.csv").read_bytes() == b"12345"
    assert (tmp_path / "events.out.tfevents.1").read_bytes() == b"123"
    assert f"{tmp_path / 'episodes.csv'} is shorter than at the checkpoint: its last 3 bytes are lost" in caplog.text
    assert "tfevents" not in caplog.text
