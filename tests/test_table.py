import pytest

from benchmarks import table
from benchmarks.mrtydi_report import METRICS, ORIGINS
from ccpretrieve.errors import UserError

LANGUAGES = ["ar", "bn", "en", "fi", "id", "ja", "ko", "ru", "sw", "te", "th"]
FILES = [f"{files}-{end}" for _, files in METRICS.values() for end in ORIGINS.values()]


@pytest.fixture
def made_up(tmp_path):
    lines = ["# made up for this test", "method\tja\tko\tavg", "A\t0.100\t0.300\t0.2", "B\t\t-\t-"]
    (tmp_path / "t.tsv").write_text("\n".join(lines) + "\n")
    return table.read_published("t", tmp_path)


def test_holes_are_absent_and_the_published_average_is_kept_apart(made_up):
    assert made_up.source == ("made up for this test",)
    assert made_up.rows == {"A": {"ja": 0.1, "ko": 0.3}, "B": {}}
    assert made_up.averages == {"A": 0.2}


def test_a_missing_language_is_a_dash_and_withholds_the_average(made_up):
    shown = table.beside({"paper": made_up}, {"C": {"ja": 0.25}}, ["ja", "ko"], "MRR")
    header, first, second, here = shown.render("text").splitlines()[:4]
    assert header.split() == ["MRR", "ja", "ko", "avg"]
    assert first.split() == ["A", "(paper)", "0.100", "0.300", "0.200"]
    assert second.split() == ["B", "(paper)", "-", "-", "-"]
    assert here.split() == ["C", "(here)", "0.250", "-", "-"]


def test_markdown_has_the_same_cells_and_names_the_source(made_up):
    shown = table.beside({"paper": made_up}, {"C": {"ja": 0.25}}, ["ja", "ko"], "MRR")
    lines = shown.render("markdown").splitlines()
    cells = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines[2:5]]
    assert cells[0] == ["A (paper)", "0.100", "0.300", "0.200"]
    assert cells[2] == ["C (here)", "0.250", "-", "-"]
    assert lines[-1] == "paper: made up for this test"


def test_the_average_is_over_the_languages_shown():
    scores = {"ja": 0.2, "ko": 0.4, "th": 0.9}
    assert table.average(scores, ["ja", "ko"]) == pytest.approx(0.3)  # (0.2 + 0.4) / 2
    assert table.average(scores, ["ja", "ko", "sw"]) is None
    assert table.average(scores, []) is None


@pytest.mark.parametrize("name", FILES)
def test_every_published_average_is_that_of_its_row(name):
    published = table.read_published(name)
    digits = 3 if name.endswith("paper") else 4  # as many as were published
    for method, stated in published.averages.items():
        mean = table.average(published.rows[method], LANGUAGES)
        assert mean == pytest.approx(stated, abs=0.5 * 10**-digits)


def test_what_could_be_had_of_table_3_is_its_recall_and_nothing_else():
    recall = table.read_published("mrtydi-recall100-paper")
    assert recall.rows["CCP"]["ja"] == 0.800
    assert all(set(row) == set(LANGUAGES) for row in recall.rows.values())
    assert len(recall.averages) == 5
    mrr = table.read_published("mrtydi-mrr100-paper")
    assert set(mrr.rows) == set(recall.rows)
    assert not any(mrr.rows.values())
    assert not mrr.averages


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method\tja\nA\t0.1\n", r"t\.tsv:1: no source"),
        ("# s\nmethod\tja\nA\t0.1\t0.2\n", r"t\.tsv:3: expected 2 cells"),
        ("# s\nmethod\tja\nA\tmissing\n", r"t\.tsv:3: .*missing.*a hole is a dash"),
        ("# s\nname\tja\nA\t0.1\n", r"t\.tsv:3: expected 2 cells, method first"),
    ],
)
def test_a_table_that_cannot_be_read_is_named_by_file_and_line(tmp_path, text, words):
    (tmp_path / "t.tsv").write_text(text)
    with pytest.raises(UserError, match=words):
        table.read_published("t", tmp_path)


def test_a_grid_aligns_names_to_the_left_and_numbers_to_the_right():
    assert table.grid([["", "s"], ["ours", "10.5"], ["a", "9.0"]]) == (
        "         s\nours  10.5\na      9.0"
    )
