import errno
import os
import stat

from lib.system import files


def test_a_shared_folder_that_cannot_be_synchronised_takes_files_all_the_same(tmp_path, monkeypatch):
    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fsync)
    files.write(tmp_path / "result.json", "zwölf\n")
    assert (tmp_path / "result.json").read_text(encoding="utf-8") == "zwölf\n"
