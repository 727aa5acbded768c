"""What ``bench_serving.py`` has seen, as text and as a page of the documentation."""

from __future__ import annotations

from collections.abc import Mapping

Columns = Mapping[str, Mapping[str, str]]
"""By server, by act: what was seen."""

_PAGE = """\
# Beside vLLM-Omni

`wantrn serve` and vLLM-Omni 0.30's own server speak the same API of videos. What both do in the
same cases, and how long a video takes, is measured by one program, which wrote this page:

```sh
python3.11 tools/omni_env.py DIR
./pants run tools/bench_serving.py -- \\
    --vllm-omni DIR/bin/python --faults --markdown docs/vllm-omni.md
```

vLLM-Omni has no platform for a CPU; the program brings one
([tools/omni_cpu.py](../tools/omni_cpu.py)). The server and its pipeline are vLLM-Omni's own,
without our plugin. Both have the same checkpoint of random weights, in float32, and the same
threads in all.

## What they do

Seen through HTTP. Seconds are those of one machine, with {processors} processors. Files of videos
are lossy: a number that rounds the other way may change a block of a picture.

{table}
"""

_TIMES = """\

## How long a video takes

Medians of jobs that take turns, as ratios, on the same machine. `serve` is the embedded engine,
`serve_on_omni` is ours on vLLM-Omni's, `stock` is vLLM-Omni's own; `generate` is denoising and
decoding of `wantrn generate`, without the text encoder and the writing of the file. `one` is one
rank, the others are two.

| ratio | |
| --- | --- |
{ratios}
"""


def as_text(columns: Columns) -> str:
    """The acts, and below each what was seen of every server."""
    lines = []
    width = max(map(len, columns))
    for act in next(iter(columns.values())):
        lines.append(act)
        lines += [f"    {name:{width}}  {seen[act]}" for name, seen in columns.items()]
    return "\n".join(lines)


def as_markdown(columns: Columns) -> str:
    """The same as a table."""
    rows = [["act", *columns], ["---"] * (1 + len(columns))]
    for act in next(iter(columns.values())):
        rows.append([act, *(seen[act] for seen in columns.values())])
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
    )


def page(columns: Columns, figures: Mapping[str, float], processors: int) -> str:
    """The page: the table, and those of ``figures`` that are ratios."""
    ratios = [f"| `{key}` | {value:.2f} |" for key, value in figures.items() if "_over_" in key]
    text = _PAGE.format(table=as_markdown(columns), processors=processors)
    return text + _TIMES.format(ratios="\n".join(ratios)) if ratios else text
