"""Progress bars are recognised among lines, and those of many ranks become one."""

import pytest

from jdist.notebook.text import folding


@pytest.mark.parametrize(
    ("line", "label", "part", "count", "total"),
    [
        ("  0%|          | 0/1000 [00:00<?, ?it/s]", "", 0.0, 0, 1000),
        (" 41%|████▏     | 410/1000 [00:12<00:17, 33.51it/s, loss=0.1]", "", 0.41, 410, 1000),
        ("epoch 3: 100%|##########| 3/3 [00:12<00:00,  4.0s/it]", "epoch 3", 1.0, 3, 3),
        ("get:  41%|████▏     | 4.1M/10.0M [00:12<00:17, 33.5MB/s]", "get", 0.41, 4.1e6, 1e7),
        ("410it [00:12, 33.51it/s]", "", None, 410, 0),
        ("read: 4.10kit [01:00:12, 33.51it/s]", "read", None, 4100, 0),
        ("Working... \x1b[38;5;1m━━━━━━━━╸\x1b[0m━━━━━━━━ 41% 0:00:12", "Working...", 0.41, 0, 0),
        ("10/20 ━━━━━━━━━━━━━━━━━━━━ 0s 3ms/step - loss: 0.1", "", 0.5, 10, 20),
        ("Epoch 0/2 ━━━━━━━━━━━━━━━━ 3/10 0:00:01 • 0:00:02 12.3it/s", "Epoch 0/2", 0.3, 3, 10),
        ("3/10 [=====>......] - loss: 0.1", "", 0.3, 3, 10),
    ],
)
def test_a_bar_is_recognised(line: str, label: str, part: float | None, count: float, total: float) -> None:
    bar = folding.find(line)
    assert bar is not None
    assert (bar.label, bar.part) == (label, part)
    assert (bar.count, bar.total) == pytest.approx((count, total))


@pytest.mark.parametrize(
    "line",
    [
        *("", "loss 0.1 | 0.2", "50% of 3/4", "| 1 | 2 | 3/4 | 50% |", "tensor([0.1000, 0.2500])", "|----|-----|"),
        *(
            "━━━━━━━━━━━━",
            "┏━━━━━━━━━━━━━━━┓",
            "[..........]",
            "step 10/20 loss 3%",
            "a[1:2] / b",
            "x" * 5000 + "50%|██| 1/2",
        ),
    ],
)
def test_what_is_no_bar(line: str) -> None:
    assert folding.find(line) is None


def found(line: str) -> folding.ProgressBar:
    bar = folding.find(line)
    assert bar is not None
    return bar


def test_bars_of_many_ranks_are_one() -> None:
    by_ranks = {
        (r,): found(f"epoch 2: {41 + r % 4}%|████ | {410 + 10 * (r % 4)}/1000 [00:01<00:02]") for r in range(20)
    }
    by_ranks[20, 21] = found("epoch 2:  40%|████ | 400/1000 [00:01<00:02]")
    assert folding.summary(by_ranks) == "epoch 2 40-44 % ━━━━━━━━━─╌╌╌╌╌╌╌╌╌╌╌╌╌╌ 400-440/1000 · slowest ranks 20-21"
    assert len({folding.kind(bar) for bar in by_ranks.values()}) == 1


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a:  50%|██  | 1/2 [", "a:  50%|██  | 1/2 ["], "a 50 % ━━━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌ 1/2"),
        (["r 0: 100%|████| 8/8 [", "r 1: 100%|████| 9/9 ["], "r … 100 % ━━━━━━━━━━━━━━━━━━━━━━━━"),
        (["7it [00:01, 3it/s]", "9it [00:01, 3it/s]"], "7-9 · slowest rank 0"),
        (
            ["w ━━━━━━━━━━ 25% 0:00:12", "w ━━━━━━━━━━ 50% 0:00:12"],
            "w 25-50 % ━━━━━━──────╌╌╌╌╌╌╌╌╌╌╌╌ · slowest rank 0",
        ),
    ],
)
def test_the_summary(lines: list[str], expected: str) -> None:
    assert folding.summary({(rank,): found(line) for rank, line in enumerate(lines)}) == expected


@pytest.mark.parametrize(
    ("line", "most", "expected"),
    [
        ("train:  50%|█████     | 5/10 [00:12<00:12]", 80, "train:  50%|█████     | 5/10 [00:12<00:12]"),
        (f"train:  50%|{'█' * 20}{' ' * 20}| 5/10", 30, f"train:  50%|{'█' * 6}{' ' * 6}| 5/10"),
        (f"train:  50%|{'█' * 20}{' ' * 20}| 5/10", 20, f"train:  50%|{'█' * 8}"),  # no room for a bar
        ("no bar at all", 6, "no bar"),
    ],
)
def test_a_bar_is_drawn_shorter_where_its_line_does_not_fit(line: str, most: int, expected: str) -> None:
    assert folding.fit(line, most) == expected
    assert len(folding.fit(line, most)) <= most
