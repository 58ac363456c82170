"""tools/compare.py: a table of runs in the terminal and as CSV."""

from pathlib import Path

import pandas as pd
import pytest

from finished_runs import make_run
from running import contents

COMPARE = Path("tools/compare.py")


def test_the_table_shows_differing_settings_and_all_outcomes(answer, tmp_path):
    solved = make_run(tmp_path / "solved")
    killed = make_run(tmp_path / "killed", episodes=200, returns=lambda n: n % 2, learning_rate=1.25e-7)
    (killed / "result.json").unlink()
    output = answer(COMPARE, solved, killed, "--csv", tmp_path / "table.csv")
    lines = {line.split()[0]: line.split()[1:] for line in output.splitlines()[1:]}
    assert lines["learning_rate"][1] == "1.25e-07"
    assert "gamma" not in lines
    assert lines["steps"] == ["15007", "20000"]
    assert lines["episodes"] == ["150", "200"]
    assert (lines["mean"][1], lines["minutes"][1]) == ("0.50", "20.00")
    assert lines["solved"] == ["1.00", "-"]
    assert lines["ended"] == ["solved", "no", "result"]
    assert pd.read_csv(tmp_path / "table.csv")["run"].tolist() == ["solved", "killed"]


@pytest.mark.parametrize(("tool", "option"), [(COMPARE, "--csv"), (Path("tools/evaluate.py"), "--output")])
def test_an_output_replaces_no_file_and_needs_a_folder(refused, tmp_path, tool, option):
    run = make_run(tmp_path / "run")
    before = contents(run)
    for name in ("params.json", "episodes.csv"):
        assert f"{run / name} exists and would be lost" in refused(tool, run, option, run / name)
    assert f"there is no folder {tmp_path / 'none'}" in refused(tool, run, option, tmp_path / "none" / "file")
    assert contents(run) == before
