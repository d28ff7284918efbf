"""The picture of all rounds: how long each took, when which fault struck, and its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from epochal.chaos.report import kinds as legend
from epochal.chaos.report.account import Account
from epochal.chaos.report.chart import colour, drawing, figure, svg, text_width
from epochal.chaos.report.kinds import Kind
from epochal.chaos.report.timeline import BOTTOM, TOP, WIDTH, Picture, time_axis
from epochal.chaos.report.words import SIGNS, VERDICTS

ROW = 20
MOST = 100


def draw(accounts: Sequence[Account], kinds: Mapping[str, Kind], name: str) -> Picture:
    """Draw a row for each round.  If there are too many, rounds that are not valid are chosen first."""
    chosen = choose(accounts)
    with drawing():
        left = 14 + max(text_width(_label(account)) for account in chosen)
        right = 24 + max(text_width(_verdict(account)) for account in chosen)
        width = WIDTH - left - right
        height = ROW * len(chosen)
        under = BOTTOM + legend.legend_height(kinds.values(), width)
        whole = TOP + height + under
        made = figure(WIDTH, whole)
        axes = made.add_axes((left / WIDTH, under / whole, width / WIDTH, height / whole))
        span = max(account.end for account in chosen) or 1.0
        clocked = any(account.clocked for account in chosen)
        axes.set(xlim=(0, span), ylim=(height, 0))
        axes.set_yticks([ROW * (n + 0.5) for n in range(len(chosen))], [_label(account) for account in chosen])
        time_axis(axes, "seconds since its round began" if clocked else "events since its round began", clocked)
        _rows(axes, chosen, kinds, span * (1 + 12 / width))
        legend.draw_legend(made, kinds.values(), left, width)
        markup = svg(made, name, "All rounds", _description(accounts))
    left_out = len(accounts) - len(chosen)
    return Picture(markup, (f"{left_out} further rounds, all valid, are not drawn.",) if left_out else ())


def choose(accounts: Sequence[Account], most: int = MOST) -> list[Account]:
    """Return at most so many rounds, in their order.  Rounds that are not valid are chosen first."""
    worst = sorted(accounts, key=lambda account: (VERDICTS[account.verdict] == "valid", account.number))
    return sorted(worst[:most], key=lambda account: account.number)


def _label(account: Account) -> str:
    return f"round {account.number}"


def _verdict(account: Account) -> str:
    return f"{SIGNS[account.verdict]} {VERDICTS[account.verdict]}"


def _description(accounts: Sequence[Account]) -> str:
    counted = [f"{sum(a.verdict is verdict for a in accounts)} {word}" for verdict, word in VERDICTS.items()]
    return f"{len(accounts)} rounds: {', '.join(counted)}. The table of rounds says the same in numbers."


def _rows(axes: Axes, chosen: Sequence[Account], kinds: Mapping[str, Kind], verdicts: float) -> None:
    """Draw bars, faults and verdicts; ``verdicts`` is where the verdicts begin."""
    bars = [([(0, account.end)], (ROW * place + 6, ROW - 12)) for place, account in enumerate(chosen)]
    for spans, rows in bars:
        axes.broken_barh(spans, rows, facecolors=colour("bar"), linewidth=0)
    for kind in reversed(list(kinds.values())):
        found = [(b.start, n) for n, a in enumerate(chosen) for b in a.bands if b.fault.kind == kind.name]
        kind.mark(axes, [start for start, _ in found], [ROW * (place + 0.5) for _, place in found])
    for place, account in enumerate(chosen):
        text, y = _verdict(account), ROW * (place + 0.5)
        weight = "normal" if VERDICTS[account.verdict] == "valid" else "bold"
        tint = colour(VERDICTS[account.verdict])
        axes.text(verdicts, y, text, color=tint, weight=weight, verticalalignment="center_baseline")
        for violation in account.violations:
            axes.plot([violation.at], [y], "|", markersize=ROW - 2, color=colour("invalid"), markeredgewidth=3)
