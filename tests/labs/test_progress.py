"""Progress where there is no terminal and no notebook; the notebook's is tested through a real kernel."""

from shardlab.labs import progress


def test_plain_lines_go_to_the_standard_error(capsys):
    with progress.display("4 ranks") as view:
        view.update("counting", 2, 9)
        view.update("waiting", 0, 0)
        view.write("[rank 1] hello")
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["4 ranks [2/9] counting", "4 ranks: waiting", "[rank 1] hello"]
    assert captured.out == ""


def test_silence(capsys):
    with progress.display("4 ranks", show=False) as view:
        view.update("counting", 2, 9)
        view.write("[rank 1] hello")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress.display("4 ranks") as view:
        view.update("counting", 2, 9)
        view.write("[rank 1] [bold]hello")
    assert "[rank 1] [bold]hello" in capsys.readouterr().err
