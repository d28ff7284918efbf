"""``python -m benchmarks.page`` writes the page of the stored results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.page.document import html
from benchmarks.results import FOLDER, folder_of_results


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.page", description="Write a page with plots of the stored results."
    )
    parser.add_argument(
        "--from", type=folder_of_results, default=FOLDER, dest="folder", help="the folder of the results"
    )
    parser.add_argument("--quick", action="store_true", help="of quick runs instead of full ones")
    parser.add_argument("--into", type=Path, help="the file (index.html beside the results)")
    options = parser.parse_args(arguments)
    path: Path = options.into or options.folder / "index.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html(options.folder, quick=options.quick), encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
